"""The server on two nodes of a Ray cluster: replicas come and go with the load, and one node may die."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'plait[ray-serve]'")


@pytest.mark.engine
@pytest.mark.slow
def test_replicas_on_two_nodes_serve_on_when_one_node_dies() -> None:
    child = Path(__file__).with_name("serve_child.py")
    done = subprocess.run([sys.executable, str(child)], capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["nodes"] == 2 and found["answers"] == [200] * 16
    assert found["under load"] == [200] * 24
    assert found["served on"] and found["at the end"] == [200] * 16
    assert found["in flight"].count(200) >= 1, "those of the node that lived are answered"
