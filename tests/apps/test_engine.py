"""The command line on the real engine, in Ray, with the bundled model."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from plait.apps.common.interrupt import descendants

pytestmark = pytest.mark.engine


def group(session: int) -> list[str]:
    """The processes of a session that have not ended, Ray's own ones too where they stayed in it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_threads_solve_puzzles_that_the_model_never_saw(process, tmp_path):
    running = process(
        "eval", "countdown", "--count", 40, "--planner", "threads", "--answers", tmp_path / "out.jsonl", "--json"
    )  # fmt: skip
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    said = json.loads(out)
    assert said["n"] == 40
    assert said["failed"] == 0
    assert said["solved"] >= 20
    assert said["critical_path_tokens_mean"] < said["total_tokens_mean"]
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sum(record["solved"] for record in records) == said["solved"]
    assert group(running.pid) == []


def test_ctrl_c_leaves_engine_and_ray_clean(process):
    running = process("eval", "countdown", "--count", 150, "--planner", "sample", "--json")
    assert running.stderr is not None
    for line in running.stderr:
        if "solved" in line:
            break
    started = descendants(running.pid)
    assert len(started) > 3  # Ray's daemons and the engine's actor
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 130, err
    said = json.loads(out)
    assert said["status"] == "cancelled"
    assert 0 < said["n"] < 150
    assert [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists() and _alive(pid)] == []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
