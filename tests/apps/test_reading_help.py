"""What people read of the command line: help whose brackets are there, completion, plain signs, whole ids in pipes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from plait.apps.common.terminal import console
from plait.apps.main import build

Plait = Callable[..., Any]


def helps(group: Any, words: str = "plait") -> Iterator[tuple[str, str]]:
    """Yield the help texts of all commands and options, with the words that they are about."""
    default = [group.default] if getattr(group, "default", None) is not None else []
    for command in [*getattr(group, "commands", {}).values(), *default]:
        name = f"{words} {command.name}"
        yield name, command.help or ""
        for option in command.params:
            yield f"{name} {option.name}", getattr(option, "help", None) or ""
        yield from helps(command, name)


def test_no_help_text_loses_what_stands_in_brackets() -> None:
    group = build()
    group.load_all()
    lost = [name for name, text in helps(group) if Text.from_markup(text).plain != text]
    assert not lost


@pytest.mark.parametrize(
    ("words", "count", "completes"),
    [
        ("plait ru", 1, {"run", "runs"}),
        ("plait run --planner skel", 3, {"skeleton", "skeleton-graph"}),
        ("plait run --merge best", 3, {"best-of", "best-scored"}),
        ("plait run --model tables", 3, {"tables", "tables-draft", "tables-tiny"}),
        ("plait runs re", 2, {"resume", "replay"}),
        ("plait batch --wa", 2, {"--want"}),
    ],
)
def test_a_shell_completes(words: str, count: int, completes: set[str], process: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("_PLAIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(count))
    out, _ = process().communicate(timeout=60)
    assert set(out.split()) == completes


def test_signs_that_a_stream_cannot_show_have_stand_ins() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    console(stream).print("├─ ✓ vote · 2 of 3 …")
    stream.flush()
    assert stream.buffer.getvalue() == b"|- + vote - 2 of 3 .\n"  # type: ignore[attr-defined]


def test_a_pipe_gets_whole_ids(plait: Plait, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    long = plait("run", "a long question\n" * 40, "--script", script("yes"), "--json").json["run"]
    run = plait("run", "hi", "--script", script("yes"), "--json").json["run"]
    _, *rows = plait("runs", "list").out.splitlines()
    assert [row.split()[0] for row in rows] == [run, long]


def test_a_folder_that_is_not_there_is_said_before_an_engine_starts(plait: Plait) -> None:
    done = plait("run", "hi", "--worker", "engine", "--model", "/no/such/folder")
    assert done.code == 1 and "there is no model at /no/such/folder" in done.err and "starting" not in done.err
