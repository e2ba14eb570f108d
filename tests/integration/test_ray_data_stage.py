"""A planner as a stage of Ray Data: killed, it resumes behind the rows that it has written, and rows wait before it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.checkout import python_path

pytest.importorskip("ray.data.checkpoint", reason="Ray Data has no checkpoints here: pip install 'plait[ray-data]'")
ROOT = Path(__file__).resolve().parents[2]
ROWS, FILES = 240, 30
MAX_ROWS_IN_FLIGHT = 2 * 2 * 8
"""Actors and blocks of an actor, as the example sets them, and rows of a block."""


@pytest.fixture
def home() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="pr-")  # short: Ray puts sockets there
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def read_notes(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob("notes-*") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda note: note["at"])


def count_in_flight(notes: list[dict[str, Any]]) -> int:
    """Return the largest number of rows that were in the stage at the same time."""
    most = now = 0
    for note in notes:
        now += note["sign"] * len(note["ids"])
        most = max(most, now)
    return most


def read_finished(folder: Path) -> set[int]:
    """Return the rows that Ray Data has recorded as written."""
    import pyarrow.parquet as parquet

    files = [file for file in (folder / "checkpoint").rglob("*.parquet") if "pending" not in file.name]
    return {row for file in files for row in parquet.read_table(file)["id"].to_pylist()}


@pytest.mark.engine
@pytest.mark.slow
def test_a_pipeline_that_was_killed_resumes_behind_the_rows_that_it_has_written(tmp_path: Path, home: str) -> None:
    (tmp_path / "in").mkdir()
    for part in range(FILES):  # a file is a block, and a block is written as a whole
        lines = [json.dumps({"id": i, "text": f"question {i}"}) for i in range(part, ROWS, FILES)]
        (tmp_path / f"in/{part}.jsonl").write_text("\n".join(lines))
    (tmp_path / "script.json").write_text(json.dumps({"replies": [{"text": "a reply", "delay": 0.5}]}))
    command = [sys.executable, str(Path(__file__).with_name("ray_data_child.py")), str(tmp_path)]
    path = os.pathsep.join([python_path(ROOT), str(ROOT / "examples")])  # for the actors too
    environment = {**os.environ, "PYTHONPATH": path, "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 400
    while len(read_finished(tmp_path)) < ROWS // 8:
        assert first.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    finished, notes = read_finished(tmp_path), read_notes(tmp_path)
    assert len(finished) < ROWS and sum(note["sign"] == 1 for note in notes) < ROWS // 8, "it was over too soon"
    assert 8 < count_in_flight(notes) <= MAX_ROWS_IN_FLIGHT
    for file in tmp_path.glob("notes-*"):
        file.unlink()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert again.returncode == 0, again.stderr[-3000:]
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    assert sorted(row["id"] for row in rows) == list(range(ROWS)), "every row is written once"
    assert {row["answer"] for row in rows} == {"a reply"}
    notes = read_notes(tmp_path)
    begun = [row for note in notes if note["sign"] == 1 for row in note["ids"]]
    assert len(begun) == len(set(begun)) and not finished & set(begun), "no finished row is run again"
    assert 8 < count_in_flight(notes) <= MAX_ROWS_IN_FLIGHT
