"""Engines, nodes and clusters that die under a run. Each loses them in a process of its own: Ray may end that, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.checkout import python_path

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CHILD = Path(__file__).with_name("faults_child.py")


def apart(root: Path, part: str) -> tuple[dict[str, Any], str]:
    """Return what a part of the child found, and what it said on standard error. Whatever it started ends with it."""
    child = subprocess.Popen(
        [sys.executable, CHILD, part],
        cwd=root,
        env={
            **{k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
            "PYTHONPATH": python_path(root),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=500)
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert child.returncode == 0, f"it ended with code {child.returncode}\n{out[-2000:]}\n{err[-4000:]}"
    return json.loads(out.splitlines()[-1]), err


def test_an_engine_or_a_node_that_is_killed_costs_neither_answers_nor_tokens(root: Path) -> None:
    found, _ = apart(root, "engine_and_node")
    for what in ("engine", "node"):
        assert found[what]["moved"] > 0, f"the {what} was killed when nothing was running"
        assert found[what]["same"] == 24
        assert found[what]["repeated"] < 0.05  # 1 % is measured on longer runs


def test_a_cluster_outlives_its_first_user_and_its_loss_is_an_error(root: Path) -> None:
    found, said = apart(root, "head")
    assert found["first"] == found["second"] == found["third"] == "one two three"
    assert "head node" in said and "has not answered for 15 s" in said
    for when in ("lost", "after"):
        status, message = found[when]
        assert status == "failed"
        assert "no worker" in message
