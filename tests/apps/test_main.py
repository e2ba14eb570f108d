"""The list of commands: quick, whole, and helpful about words that are no command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from plait.apps.main import COMMANDS, build

Plait = Callable[..., Any]


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom plait.apps.main import run\nassert run(['--help']) == 0\n"
        "slow = ('plait.apps.', 'plait.core', 'plait.runtime', 'pydantic')\n"
        "print(sorted(name for name in sys.modules if name.startswith(slow)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert eval(loaded) == [
        "plait.apps.common", "plait.apps.common.guard", "plait.apps.common.output", "plait.apps.common.terminal",
        "plait.apps.main",
    ]  # fmt: skip
    for name in COMMANDS:
        assert any(f" {name} " in line for line in shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_of_the_table_is_there_and_has_help(name: str, plait: Plait) -> None:
    done = plait(name, "--help")
    assert done.code == 0
    assert f"Usage: plait {name}" in done.out


def test_all_commands_can_be_loaded_at_once() -> None:
    group = build()
    group.load_all()
    assert list(group.commands) == list(COMMANDS)
    assert all(each.params for name, each in group.commands.items() if name not in ("ctl", "job", "runs"))
    jobs: Any = group.commands["job"]
    assert {"submit", "manifest", "status", "logs", "result", "cancel", "list"} == set(jobs.commands)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu", "x"], "No such command 'rnu'. Did you mean 'run'? (see plait --help)"),
        (["runs", "shwo"], "No such command 'shwo'. Did you mean 'show'? (see plait runs --help)"),
        (["frobnicate"], "No such command 'frobnicate' (see plait --help)"),
        ([], "a command is missing: choose one of the list (see plait --help)"),
        (["runs"], "a command is missing: choose one of the list (see plait runs --help)"),
    ],
)
def test_words_that_are_no_command(words: list[str], said: str, plait: Plait) -> None:
    done = plait(*words)
    assert done.code == 2
    assert done.err == f"error: {said}\n"
    assert ("Commands" in done.out) is not bool(words and words != ["runs"])
