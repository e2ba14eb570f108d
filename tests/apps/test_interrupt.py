"""Ctrl-C at any moment: the run is cancelled, what is there is printed, the process ends; the second is at once."""

from __future__ import annotations

import json
import signal
import sqlite3
import time

import pytest

SLOW = {"text": "one two three four five six seven eight", "tokens_per_second": 4, "delay": 0.0}


def wait_until(ready, seconds=300.0):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def progressed(path):
    """Whether a journal holds news of generated text."""

    def ready():
        if not path.exists():
            return False
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
                return db.execute("SELECT count(*) FROM events WHERE kind = 'progressed'").fetchone()[0] > 0
        except sqlite3.Error:
            return False

    return ready


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_run_is_cancelled_and_reported(process, script, tmp_path, number, code):
    journal = tmp_path / "journal.db"
    replies = script({"when": "", **SLOW, "tokens_per_second": 1})
    planner = "single:answer.stream=true"  # then the journal has the text while it is written
    running = process("run", "q", "--planner", planner, "--script", replies, "--journal", journal, "--json")
    wait_until(progressed(journal))
    running.send_signal(number)
    out, err = running.communicate(timeout=300)
    assert running.returncode == code
    said = json.loads(out)
    assert said["status"] == "cancelled"
    assert 0 < said["usage"]["cancelled"] < 8
    assert "Traceback" not in err


def test_an_evaluation_keeps_what_is_done(process, script, tmp_path):
    replies = script({"text": "<none>", "times": 3}, {"text": "never", "delay": 600})
    answers = tmp_path / "answers.jsonl"
    running = process(
        "eval", "countdown", "--limit", 40, "--concurrency", 2, "--script", replies, "--out", answers,
        "--json", "--journal", tmp_path / "j.db",
    )  # fmt: skip
    assert running.stderr is not None

    def three_are_done():
        try:
            with sqlite3.connect(f"file:{tmp_path / 'j.db'}?mode=ro", uri=True) as db:
                return db.execute("SELECT count(*) FROM events WHERE kind = 'succeeded'").fetchone()[0] == 3
        except sqlite3.Error:
            return False

    wait_until(three_are_done)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=300)
    assert running.returncode == 130
    said = json.loads(out)
    assert (said["status"], said["n"], said["problems"]) == ("cancelled", 3, 40)
    assert len(answers.read_text().splitlines()) == 3


def test_a_demonstration_closes_with_what_it_has(process, script, tmp_path):
    journal = tmp_path / "journal.db"
    running = process("demo", "--script", script({**SLOW, "tokens_per_second": 1}), "--journal", journal)
    wait_until(progressed(journal))
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert "status: cancelled" in out
    assert "0/0" in out
    assert "Traceback" not in err


UNSTARTABLE = """
import asyncio, pathlib

class Never:
    name, slots, serves = "never", 1, ("think",)

    def __init__(self): pass

    async def start(self):
        pathlib.Path("starting").touch()
        await asyncio.sleep(600)

    async def run(self, job):
        yield None

    async def cancel(self, attempt): pass

    async def health(self):
        yield True

    async def close(self):
        pathlib.Path("closed").touch()
"""


def test_while_the_engine_starts(process, tmp_path, monkeypatch, root):
    (tmp_path / "never_up.py").write_text(UNSTARTABLE)
    running = process("run", "q", "--worker", "never_up:Never", "--json")
    wait_until((tmp_path / "starting").exists)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 130, err
    assert json.loads(out)["status"] == "cancelled"
    assert (tmp_path / "closed").exists()


def test_the_second_one_leaves_at_once(process, tmp_path):
    stuck = UNSTARTABLE.replace(
        'pathlib.Path("closed").touch()', 'pathlib.Path("closing").touch(); await asyncio.sleep(600)'
    )
    (tmp_path / "never_up.py").write_text(stuck)
    running = process("run", "q", "--worker", "never_up:Never", "--json")
    wait_until((tmp_path / "starting").exists)
    running.send_signal(signal.SIGINT)
    wait_until((tmp_path / "closing").exists)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=300)
    assert running.returncode == 130
    assert out == ""
