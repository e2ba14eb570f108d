"""The first minute: a plain question never meets a puzzle model, and an answer that is none is never `done`."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.apps.batch.rows import Log
from plait.apps.common import session
from plait.apps.common.files import write_private
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_a_file_of_any_spreadsheet_is_read(encoding: str, sign: str, plait: Plait, script: Any) -> None:
    rows = [("frage", "antwort"), ("Six times 7?", "42"), ("What, then; is 40 + 2?", "42")]
    quoted = "".join(sign.join(f'"{cell}"' for cell in row) + "\r\n" for row in rows)
    Path("mine.csv").write_bytes(quoted.encode(encoding))
    done = plait("eval", "mine.csv", "--script", script("Answer: 42"), "--json")
    assert (done.json["n"], done.json["solved"], done.json["text"], done.json["want"]) == (2, 2, "frage", "antwort")
    out = plait("batch", "mine.csv", "--text", "frage", "--out", "o.jsonl", "--script", script("Answer: 42"), "--json")
    assert (out.json["done"], out.json["failed"]) == (2, 0)


def test_lines_with_one_fault_are_one_fault(plait: Plait, script: Any) -> None:
    Path("rows.jsonl").write_text('{"frage": "q"}\n' * 7)
    done = plait("eval", "rows.jsonl", "--task", "countdown", "--script", script("x"))
    assert "rows.jsonl: line 1, 2, 3 and 4 more: has no whole numbers" in done.err and done.err.count("has no") == 1


def test_how_many_rows_there_are_is_said(plait: Plait, script: Any) -> None:
    Path("rows.jsonl").write_text('{"text": "q", "want": "a"}\n' * 30)
    words = ("eval", "rows.jsonl", "--script", script("a"))
    done = plait(*words, "--quick")
    assert "20 of 30 rows of rows.jsonl (more: --limit N)" in done.err
    assert done.err.count("solved") == 3, "in a pipe one line a planner, not one a row"
    assert "30 rows of rows.jsonl:" in plait(*words).err


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = Log(Path("out.progress"), {}, rows=1)
    log.close()
    monkeypatch.setattr(log, "_file", SimpleNamespace(seek=lambda *_: 0, write=full))
    with pytest.raises(OSError, match=r"out\.progress"):
        log.add({"row": 0, "status": "done"})
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=r"page\.html"):
        write_private(Path("page.html"), b"x")


def test_a_conversation_is_left_by_the_usual_words(plait: Plait, script: Any) -> None:
    sys.stdin = io.StringIO("help\nexit\nnever asked\n")
    done = plait("repl", "--script", script("a"))
    assert "/branches" in done.out and "tokens (" not in done.out and done.code == 0


def test_live_runs_in_a_pipe_are_whole(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"run": "92ab" * 8, "status": "running", "planner": "sample-with-a-long-name", "tokens": 1, "seconds": 1.0}
    run |= {"text": "a long question " * 4, "done": 1, "steps": 2, "running": 1}
    process = {"pid": 7, "words": ["run"], "workers": []}
    monkeypatch.setattr("plait.apps.control.command.processes", lambda: iter([(None, process, [run])]))
    done = plait("runs", "list", "--live")
    assert "92ab92ab" in done.out and "sample-with-a-long-name" in done.out and "…" not in done.out
