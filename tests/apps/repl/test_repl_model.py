"""Which model a conversation is with where nobody names one: the chat model that was fetched, for plain questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.apps.repl.session import ReplSession
from plait.apps.repl.state import Manner
from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client.config import BUNDLED_MODEL, Config

PUZZLES = str(BUNDLED_MODEL)


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a chat model in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "plait" / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize("worker", ["ray", "engine"])
def test_plain_questions_are_for_the_chat_model_that_is_there(chat: str, worker: str) -> None:
    assert ReplSession(Config(worker=worker)).config.model == chat
    puzzles = Manner(Request().updated({"task": Plugin(name="countdown")}))
    assert ReplSession(Config(worker=worker), puzzles).config.model == PUZZLES
    threads = Manner(Request().updated({"planner": Plugin(name="threads")}))
    assert ReplSession(Config(worker=worker), threads).config.model == chat, "a plain question meets no puzzle model"


async def test_without_it_a_plain_question_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = ReplSession(Config())
    for work in (session.warm_up(), session.ask("The capital of France?")):
        with pytest.raises(ConfigError, match="plait model get smollm2"):
            await work
    session.manner.set("task", Plugin(name="countdown"))
    await session.fit()
    assert session.config.model == PUZZLES and not session.lacks_model


def test_a_model_that_is_named_stays(chat: str) -> None:
    assert ReplSession(Config(model="countdown")).config.model == PUZZLES
    assert ReplSession(Config(worker="scripted")).config.model == PUZZLES


async def test_another_kind_of_question_takes_another_model(chat: str) -> None:
    session = ReplSession(Config(worker="engine"))
    before = session.orchestrator
    session.manner.set("task", Plugin(name="countdown"))
    await session.fit()
    assert session.config.model == PUZZLES and session.orchestrator is not before
    session.manner.set("task", None)
    await session.fit()
    assert session.config.model == chat
    await session.swap(model="tables")
    session.manner.set("task", Plugin(name="countdown"))
    await session.fit()
    assert session.config.model == str(BUNDLED_MODEL.with_name("tables"))


async def test_other_settings_name_no_model(chat: str) -> None:
    session = ReplSession(Config(worker="engine"))
    await session.swap(slots=4)
    assert session.config.model == chat and session.config.slots == 4
    await session.swap(worker="http", base_url="http://localhost:1/v1")
    assert "model" not in session.config.model_fields_set, "a server is asked for its own model"
