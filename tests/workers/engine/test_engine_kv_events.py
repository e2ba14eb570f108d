"""An engine whose cache evicts: what its own events say is held is what it then really finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.engine
def test_the_index_agrees_with_the_hits_of_an_engine_that_evicts() -> None:
    child = Path(__file__).with_name("kv_events_child.py")
    env = os.environ | {"PYTHONPATH": f"{child.parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, str(child)], capture_output=True, text=True, timeout=500, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["hits"] > 15 and found["evictions"] >= 4, found
    assert len(found["wrong"]) <= 3, found
