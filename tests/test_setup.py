"""scripts/setup.sh, with a Python that only writes down its arguments: two at once, killed, without pip."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "setup.sh"
PYTHON = """#!/usr/bin/env bash
echo "$*" >> "$SAID"
case "$*" in
  "-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && touch "$4/pip" ;;
  "-m ensurepip") touch "$(dirname "$0")/../pip" ;;
  "-m pip --version") [ -e "$(dirname "$0")/../pip" ] ;;
  "-m pip install "*) sleep "${SLOW:-0}"; echo installed >> "$SAID" ;;
  *find_spec*) exit 1 ;;
  --version) echo Python 3.99 ;;
esac
"""


class Folder:
    """A folder that the script works in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said = path / "said"
        python = path / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        (path / "setup.sh").write_bytes(SCRIPT.read_bytes())

    def start(self, slow: str = "0") -> subprocess.Popen[str]:
        """Start the script; an install takes so many seconds."""
        settings = {"VENV": ".venv", "PYTHON": str(self.path / "python"), "EXTRA": "cpu", "SLOW": slow}
        return subprocess.Popen(
            ["bash", "setup.sh"], cwd=self.path, env={**os.environ, **settings, "SAID": str(self.said)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self) -> str:
        """Run the script to its end."""
        with self.start() as running:
            said, _ = running.communicate(timeout=300)
        assert running.returncode == 0, said
        return said

    def asked(self, words: str) -> int:
        """How often a Python was asked for something that begins so."""
        lines = self.said.read_text().splitlines() if self.said.exists() else []
        return sum(line.startswith(words) for line in lines)

    def until(self, words: str) -> None:
        """Wait until a Python is asked for it."""
        end = time.monotonic() + 300
        while not self.asked(words):
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_setup_that_is_run_again_keeps_the_environment(folder: Folder) -> None:
    assert "making .venv" in folder.run()
    assert "making .venv" not in folder.run()
    assert folder.asked("-m venv") == 1
    assert folder.asked("installed") == 4, "plait, and the leaderboard's questions, both times"
    assert folder.asked("-m pip install --disable-pip-version-check --no-deps bfcl-eval") == 2
    assert not (folder.path / ".venv.under-way").exists()


def test_two_at_once_work_one_after_the_other(folder: Folder) -> None:
    first = folder.start(slow="1")
    folder.until("-m pip install")
    second = folder.run()
    with first:
        assert first.wait(300) == 0
    assert "waiting for it" in second
    said = [line for line in folder.said.read_text().splitlines() if line.startswith(("-m pip install", "installed"))]
    assert [line.split()[0] for line in said] == ["-m", "installed"] * 4
    assert folder.asked("-m venv") == 1


def test_a_setup_that_was_killed_is_begun_anew(folder: Folder) -> None:
    with folder.start(slow="60") as running:
        folder.until("-m pip install")
        os.killpg(running.pid, signal.SIGKILL)
    said = folder.run()
    assert "the last setup was cut short" in said
    assert folder.asked("-m venv --clear") == 2
    assert "cut short" not in folder.run()


def test_an_environment_without_pip_gets_one(folder: Folder) -> None:
    folder.run()
    (folder.path / ".venv" / "pip").unlink()
    assert "has no pip" in folder.run()
    assert folder.asked("-m ensurepip") == 1
    assert folder.asked("-m venv") == 1
