"""What the tests of the command line share: commands run in this process or in one of their own, and scripts for the
scripted worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plait.apps import main
from scripts.checkout import python_path


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        assert self.out.count("\n") == 1, f"not one line: {self.out!r}"
        return json.loads(self.out)


Plait = Callable[..., Done]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside, and signal handlers as they were."""
    for name in list(os.environ):
        if name.startswith("PLAIT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in handlers} == handlers


@pytest.fixture
def plait(capsys: pytest.CaptureFixture[str]) -> Plait:
    """Run a command in this process."""

    def run(*words: object) -> Done:
        capsys.readouterr()
        code = main.run([str(word) for word in words])
        done = Done(code, *capsys.readouterr())
        assert "Traceback" not in done.err
        return done

    return run


@pytest.fixture
def process(root: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in a process of its own, and of its own group."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object, stdin: int | None = None) -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, "-m", "plait.apps.main", *map(str, words)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path(root), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        started.append(running)
        return running

    yield start
    for running in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        with running:  # closes the pipes
            pass


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script: replies as dictionaries, or texts that answer every prompt."""

    def write(*replies: dict[str, Any] | str, name: str = "script.json") -> Path:
        path = tmp_path / name
        said = [{"text": reply} if isinstance(reply, str) else reply for reply in replies]
        path.write_text(json.dumps({"replies": said}))
        return path

    return write
