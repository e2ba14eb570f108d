"""The list of commands: quick, whole, and helpful about words that are no command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from plait.apps.command_table import all_commands, all_families
from plait.apps.main import build

Plait = Callable[..., Any]
COMMANDS, FAMILIES = all_commands(), all_families()
WORDS = [words for commands in COMMANDS.values() for words in commands]
TOP = list(dict.fromkeys(words.split()[0] for words in WORDS))


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom plait.apps.main import run\nassert run(['--help']) == 0\n"
        "slow = ('plait.apps.', 'plait.core', 'plait.runtime', 'pydantic')\n"
        "print(sorted(name for name in sys.modules if name.startswith(slow)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert eval(loaded) == [
        "plait.apps.command_table", "plait.apps.common", "plait.apps.common.guard", "plait.apps.common.output",
        "plait.apps.main",
    ]  # fmt: skip
    for name in (*TOP, *COMMANDS):
        assert any(f" {name} " in line for line in shown)
    assert len(TOP) <= 20, "let a new command be a second word of one that is there"


def loaded(code: str) -> set[str]:
    """The modules that a fresh process has after some code."""
    asked = f"import sys\n{code}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split())


# Seconds are the machine's, modules are ours: a start takes as long as what it loads.
HEAVY = {"numpy", "jsonschema", "networkx", "aiohttp", "ray", "torch", "vllm", "plait_research.simulation"}


@pytest.mark.parametrize(
    ("code", "most", "without"),
    [
        ("import plait", 5, {"pydantic", "asyncio", "plait.core"}),
        ("import plait; plait.AsyncOrchestrator", 128, {"rich", "typer"}),
        ("import plait.apps.commands.listing", 56, {"plait.machine", "plait.runtime.client.client", "plait.core.flow"}),
        ("import plait.apps.commands.runs", 165, set()),
        ("import plait.apps.commands.run", 160, set()),
        ("import plait.workers.http", 70, {"plait.machine", "plait.runtime"}),
    ],
)
def test_a_start_loads_what_it_needs(code: str, most: int, without: set[str]) -> None:
    modules = loaded(code)
    assert not modules & (HEAVY | without)
    ours = sorted(name for name in modules if name.partition(".")[0] == "plait")
    assert len(ours) <= most, ours


@pytest.mark.parametrize("name", [*WORDS, *FAMILIES])
def test_each_command_of_the_table_is_there_and_has_help(name: str, plait: Plait) -> None:
    done = plait(*name.split(), "--help")
    assert done.code == 0
    assert f"Usage: plait {name}" in done.out


def test_a_command_that_begins_others_names_them_and_leaves_them_alone(plait: Plait) -> None:
    said = plait("simulate", "--help").out
    assert "plait simulate calibrate" in said
    assert "Usage: plait simulate calibrate" in plait("simulate", "calibrate", "--help").out
    assert "in virtual time" in plait("simulate", "calibrate it", "--planner", "sample").out


def test_all_commands_can_be_loaded_at_once() -> None:
    group = build()
    group.load_all()
    assert list(group.commands) == TOP
    jobs: Any = group.commands["job"]
    assert {"submit", "manifest"} == set(jobs.commands)


def test_every_verb_that_is_done_to_a_run_is_a_command() -> None:
    from plait.runtime.control.verbs import VERBS

    # `show --follow` watches, `cancel RUN STEP` prunes, `set` changes limits too.
    elsewhere = {"process", "watch", "prune", "limit"}
    assert {f"runs {name}" for name in VERBS if name not in elsewhere} <= set(WORDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu", "x"], "No such command 'rnu'. Did you mean 'run'? (see plait --help)"),
        (["runs", "shwo"], "No such command 'shwo'. Did you mean 'show'? (see plait runs --help)"),
        (["frobnicate"], "No such command 'frobnicate' (see plait --help)"),
        (["resume"], "No such command 'resume'. Did you mean 'runs resume'? (see plait --help)"),
    ],
)
def test_words_that_are_no_command(words: list[str], said: str, plait: Plait) -> None:
    done = plait(*words)
    assert done.code == 2
    assert done.err == f"error: {said}\n"
    assert "COMMAND [ARGS]" not in done.out


def test_the_help_alone_is_shown_where_a_command_is_missing(plait: Plait) -> None:
    for words in ([], ["runs"]):
        done = plait(*words)
        assert "COMMAND [ARGS]" in done.out and done.err == "" and done.code == 2
    assert plait("help").out == plait("--help").out and plait("help").code == 0
    assert plait("help", "runs", "show").out == plait("runs", "show", "--help").out
