"""Engines in Ray actors on two nodes come and go with the load, and a run whose four engines died goes on with two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.engine
@pytest.mark.slow
def test_engines_come_and_go_and_two_go_on_where_four_died() -> None:
    child = Path(__file__).with_name("elastic_child.py")
    done = subprocess.run([sys.executable, str(child)], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert (found["at first"], found["under load"], found["afterwards"]) == (2, 4, 2)
    assert found["pids"] == 4 and found["busy run"] == "done"
    assert found["status"] == "done" and found["whole"] == 24 * 60
    assert found["done before"] >= 1 and found["requests"] == 24 - found["done before"]  # none is done twice
