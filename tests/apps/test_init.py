"""`plait init`: three questions, and settings that the next command reads."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.runtime.client.config import Config

Plait = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.stdin", io.StringIO())


def read(file: str = "plait.toml") -> Config:
    """Read settings and all that a comment offers."""
    text = Path(file).read_text()
    offered = [line.removeprefix("# ") for line in text.splitlines() if "=" in line or line.startswith("# [")]
    Path("all.toml").write_text("\n".join(offered))
    Path("tools.py").write_text("")
    assert Config.load(file="all.toml").planner.options == {"n": 5}, "what the comments offer is valid"
    return Config.load(file=file)


def test_flags_answer_the_questions(plait: Plait) -> None:
    done = plait("init", "--base-url", "http://localhost:1/v1")
    assert done.code == 0 and "plait run" in done.out
    assert read().base_url == "http://localhost:1/v1" and read().worker == "http"
    done = plait("init", "--model", "countdown", "--out", "other.toml")
    assert done.code == 0 and "--config other.toml" in done.out and "model get" not in done.out
    assert read("other.toml").worker == "engine"


def test_a_file_that_exists_and_a_url_that_is_none_are_refused(plait: Plait) -> None:
    assert "not a URL" in plait("init", "--base-url", "nonsense").err and not Path("plait.toml").exists()
    Path("plait.toml").write_text("")
    done = plait("init", "--base-url", "http://localhost:1/v1")
    assert done.code == 2 and "exists already" in done.err and Path("plait.toml").read_text() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_asked_three_questions(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("engine\nsmollm2\nmine.toml\n"))
    done = plait("init")
    assert done.code == 0 and done.err.count("?") >= 3
    assert "plait model get smollm2\n" in done.out and 'model = "smollm2"' in Path("mine.toml").read_text()
