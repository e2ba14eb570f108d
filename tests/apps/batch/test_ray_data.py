"""`plait batch --actors`: every row has one outcome, however often the command is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait.apps.batch.ray_data import _cause, check
from plait.core.errors import ConfigError, WorkerError
from plait.runtime.client.config import Config

from ..conftest import Plait

COUNT = 1000


@pytest.mark.engine
@pytest.mark.slow
def test_a_batch_that_was_killed_goes_on_and_a_bad_row_is_a_row(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    replies = [{"when": "fails", "text": "no", "finish": "error"}, {"text": "a reply", "delay": 0.2}]
    (tmp_path / "s.json").write_text(json.dumps({"replies": replies}))
    rows = [json.dumps({"id": f"r{i}", "text": f"question {i}"}) for i in range(COUNT)]
    rows[500], rows[600] = "not json", '{"text": "this fails"}'
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    command = [sys.executable, "-m", "plait", "batch", "in.jsonl", "--out", "out.jsonl", "--script", "s.json",
               "--actors", "2", "--concurrency", "8", "--json"]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    log = tmp_path / "out.jsonl.progress"
    until = time.monotonic() + 300
    while not log.exists() or len(log.read_bytes().splitlines()) < 100:
        assert first.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)  # its cluster ends with it
    first.wait()
    second = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    said = json.loads(second.stdout)
    assert (said["status"], said["done"], said["failed"]) == ("done", COUNT, 2)
    assert 99 <= said["resumed"] < COUNT, "the first try was over too soon to show anything"
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["row"] for row in found] == list(range(COUNT))
    assert (found[500]["status"], found[600]["status"]) == ("invalid", "failed")
    assert {row["answer"] for row in found if row["row"] not in (500, 600)} == {"a reply"}


def test_what_cannot_be_spread_is_refused(plait: Plait, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "s.json").write_text('{"replies": [{"text": "b"}]}')
    done = plait("batch", "in.jsonl", "--out", "o.jsonl", "--script", "s.json", "--actors", "1", "--journal", "j")
    assert done.code == 2 and "leave --journal out" in done.err
    with pytest.raises(ConfigError, match="journal"):
        check(Config(journal=tmp_path / "runs.db"))
    assert check(Config(journal="off")).worker == "engine", "engines are in the actors, not in further ones"
    assert check(Config(journal="off", base_url="http://a/v1", worker="http")).worker == "http"


def test_the_cause_of_a_failure_is_what_the_actor_said() -> None:
    inner = WorkerError("no server answers")
    outer = RuntimeError("in the actor\nTraceback …")
    outer.__cause__ = ValueError("in between")
    outer.__cause__.__cause__ = inner
    assert _cause(outer) == "no server answers"
    assert _cause(ValueError()) == "ValueError"
