"""The first minute: a plain question never meets a puzzle model, and an answer that is none is never `done`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.apps.common import session
from plait.apps.models import fetch
from plait.core.errors import ConfigError
from plait.runtime.client.config import BUNDLED_MODEL, Config

Plait = Callable[..., Any]
REMEDY = "plait model get smollm2"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a chat model that is not there yet, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path / "cache" / "plait" / "models" / "smollm2"


def fetched(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "What is the capital of France?"),
        ("run", "What is the capital of France?", "--worker", "engine", "--planner", "threads"),
        ("batch", "rows.jsonl", "--out", "out.jsonl"),
        ("eval", "rows.jsonl"),
    ],
)
def test_a_plain_question_without_a_model_is_refused_in_one_line(words: tuple[str, ...], plait: Plait) -> None:
    Path("rows.jsonl").write_text('{"text": "The capital of France?", "want": "Paris"}\n')
    done = plait(*words)
    assert done.code == 2 and done.out == ""
    assert done.err.count("\n") == 1 and REMEDY in done.err and "--base-url" in done.err


def test_the_repl_in_a_pipe_says_it_too(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The capital of France?\n"))
    done = plait("repl", "--strict")
    assert done.code == 1 and REMEDY in done.err and "<none>" not in done.out


async def test_the_sdk_says_it_too() -> None:
    orchestrator = AsyncOrchestrator(worker="engine", journal="off")
    with pytest.raises(ConfigError, match="base_url=…"):
        await orchestrator.run("The capital of France?")
    await orchestrator.close()


async def test_a_chat_model_that_is_there_is_taken(cache: Path) -> None:
    chat = fetched(cache)
    assert session.choose_model(Config()).model == chat
    assert AsyncOrchestrator(worker="engine", journal="off").config.model == chat
    assert session.choose_model(Config(), "countdown").model == str(BUNDLED_MODEL)
    named = Config(model="tables")
    assert session.choose_model(named) is named
    server = Config(base_url="http://localhost:1/v1")
    assert session.choose_model(server) is server and AsyncOrchestrator(config=server).config is server


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("reply", "agrees"), [("\n", True), ("yes\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_it_is_offered(reply: str, agrees: bool, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(reply))
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(fetch, "get", lambda name, say: fetched(cache))
    if agrees:
        assert session.choose_model(Config()).model == str(cache)
    else:
        with pytest.raises(ConfigError, match=REMEDY):
            session.choose_model(Config())
    assert "93 MB" in sys.stderr.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_an_answer_that_is_none_is_not_done(plait: Plait, script: Any) -> None:
    done = plait("run", "q", "--script", script(""))
    assert done.code == 1 and "no answer" in done.out and "done" not in done.out
    done = plait("run", "q", "--script", script(""), "--json")
    assert done.code == 1 and (done.json["status"], done.json["answer"]) == ("no answer", None)
    sys.stdin = io.StringIO("q\n")  # the fixture puts it back
    done = plait("repl", "--script", script(""), "--strict")
    assert done.code == 1 and "no answer" in done.out and "done" not in done.out
