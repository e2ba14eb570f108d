"""A planner as a stage of Ray Data: killed it resumes, and no more rows are under way than its actors take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "ray.data.checkpoint", reason="this Ray has no checkpoints of pipelines: pip install 'plait[ray-data]'"
)
ROWS, BATCH = 400, 8


def notes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("notes-*") for line in file.read_text().splitlines()]


def written(folder: Path) -> list[Path]:
    return list((folder / "out").glob("*.json"))


@pytest.mark.engine
@pytest.mark.slow
def test_a_pipeline_that_was_killed_resumes_after_the_rows_that_it_has_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for part in range(20):  # a file is a block, and a block is written as a whole
        lines = [json.dumps({"id": i, "text": f"question {i}"}) for i in range(part, ROWS, 20)]
        (tmp_path / f"in/{part}.jsonl").write_text("\n".join(lines))
    (tmp_path / "script.json").write_text(json.dumps({"replies": [{"text": "a reply", "delay": 0.5}]}))
    command = [sys.executable, str(Path(__file__).with_name("ray_data_child.py")), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 300
    while len(written(tmp_path)) < 3:
        assert first.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = {json.loads(line)["id"] for file in written(tmp_path) for line in file.read_text().splitlines()}
    begun = [each for note in notes(tmp_path) for each in note["ids"]]
    assert 0 < len(done) < ROWS and len(begun) < ROWS, "the first try was over too soon to show anything"
    for file in tmp_path.glob("notes-*"):
        file.unlink()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert second.returncode == 0, second.stderr[-3000:]
    rows = json.loads(second.stdout.strip().splitlines()[-1])["rows"]
    assert sorted(row["id"] for row in rows) == list(range(ROWS)), "every row once"
    assert {row["answer"] for row in rows} == {"a reply"}
    again = [each for note in notes(tmp_path) for each in note["ids"]]
    assert len(again) == len(set(again)) and len(again) <= ROWS - len(done) // 2, "what was written is not run again"
    assert len({note["node"] for note in notes(tmp_path)}) == 2, "both nodes have an actor"
    # Back-pressure: blocks wait in front of the stage, and batches begin as earlier ones end.
    starts = sorted(note["at"] for note in notes(tmp_path))
    assert starts[-1] - starts[0] > 1.0, "the rows would all have begun at once"
