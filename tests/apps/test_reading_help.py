"""What people read of the command line: help whose brackets are there, completion, plain signs, whole ids in pipes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from plait.apps.common.output import console
from plait.apps.main import build
from plait.runtime.client.config import Config

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


OF_THE_ANSWER = {"--max-tokens", "--temperature", "--set"}
ASKS_ITS_OWN = {
    "plait init",
    "plait demo",  # compares ways whose sampling is part of them
    "plait doctor",  # eight tokens, to see that there are some
    "plait model up",  # asks nothing
    "plait simulate calibrate",  # answers of known lengths
    "plait simulate simulate",  # no model
    "plait runs resume",  # what was asked stands in the journal
}


def test_every_command_that_has_a_model_answer_lets_one_say_how() -> None:
    group = build()
    group.load_all()
    lacking = set()
    for name, options in commands(group):
        if "--model" in options and not options >= OF_THE_ANSWER:
            lacking.add(name)
    assert lacking <= ASKS_ITS_OWN, lacking - ASKS_ITS_OWN


def commands(group: Any, words: str = "plait") -> Iterator[tuple[str, set[str]]]:
    """Yield each command with its options."""
    default = [group.default] if getattr(group, "default", None) is not None else []
    for command in [*getattr(group, "commands", {}).values(), *default]:
        name = f"{words} {command.name}"
        yield name, {option for parameter in command.params for option in parameter.opts}
        yield from commands(command, name)


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


def test_help_has_what_most_people_want_before_the_rest(plait: Plait) -> None:
    often, _, rarely = plait("run", "--help").out.partition("Rarely needed")
    assert len([line for line in often.splitlines() if line.startswith("│ --")]) <= 24
    assert all(option in often for option in ("--planner", "--model", "--tools", "--temperature"))
    for option in ("--seed", "--journal", "--mcp", "--config", "--allow"):
        assert f" {option} " not in often and option in rarely
    assert plait("run", "hi", "--script", "none.json", "--seed", "1").code == 2
    for setting in ("gpus", "cache", "telemetry", "budget"):
        assert setting in Config.model_fields, "--set takes it"


def test_options_of_a_command_s_own_are_in_its_help(plait: Plait) -> None:
    assert "--cluster" in plait("simulate", "--help").out
    assert "Rarely needed" not in plait("runs", "list", "--help").out


@pytest.mark.parametrize("command", ["runs view", "runs replay", "runs list", "why", "plugins"])
def test_options_of_models_stand_only_where_a_model_is_used(command: str, plait: Plait) -> None:
    said = plait(*command.split(), "--help").out
    assert not [option for option in ("--model", "--worker", "--base-url", "--script") if option in said]


def test_a_run_of_any_journal_can_be_drawn(plait: Plait, script: Any) -> None:
    run = plait("run", "hi", "--script", script("yes"), "--journal", "mine.plait", "--json").json["run"]
    for form in ((), ("--format", "json")):
        assert plait("runs", "view", run[:8], *form, "--from", "mine.plait", "--json").json["run"] == run
    assert plait("runs", "view", run, "--from", "nothing.plait").code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("batch mine.csv --script s.json", "--out is missing"),
        ("eval none.csv", "there is no file none.csv"),
        ("run hi --task gsm8k", "FILE.py:Class"),
        ("run hi --worker htpp", "did you mean 'http'"),
        ("run hi --model coutdown --worker engine", "did you mean 'countdown'"),
        ("runs list --status faild", "did you mean 'failed'"),
        ("run hi --planner smple --script s.json", "did you mean 'sample'"),
        ("run hi --temprature 0.7", "--temperature"),
    ],
)
def test_a_word_that_is_wrong_is_answered_with_the_right_one_and_nothing_starts(
    words: str, said: str, plait: Plait
) -> None:
    Path("mine.csv").write_text("question,answer\n6 times 7?,42\n")
    Path("s.json").write_text('{"replies": [{"text": "yes"}]}')
    done = plait(*words.split())
    assert done.code in (1, 2) and said in done.err and "starting" not in done.err, done.err


def test_what_a_model_says_loses_nothing_to_markup(plait: Plait, script: Any) -> None:
    assert "[bold]42[/bold] [/]" in plait("run", "[red]hi", "--script", script("[bold]42[/bold] [/]"), "-v").out
