"""The table of the REPL's commands, and the parser of their arguments. The commands are in `commands/`."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.errors import UsageError
from ...core.messages import did_you_mean

Do = Callable[[Any, str], Awaitable[None]]
"""The function of a command; its arguments are the conversation (`Repl`) and the words after the command."""
Kind = Literal["", "text", "planner", "policy", "task", "merge", "model", "step", "turn", "file", "budget", "command"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    name: str
    usage: str
    about: str
    do: Do
    takes: Kind = ""
    """What its argument is, for completion."""
    idle: bool = False
    """Only while nothing runs."""


COMMANDS: dict[str, Command] = {}
_ALIASES = {"exit": "quit", "q": "quit", "?": "help"}


def find(name: str) -> Command:
    """Return a command by its name, an alias, or a unique prefix. Raises `UsageError`."""
    name = _ALIASES.get(name, name)
    if name in COMMANDS:
        return COMMANDS[name]
    begins = [command for command in COMMANDS if name and command.startswith(name)]
    if len(begins) == 1:
        return COMMANDS[begins[0]]
    if begins:
        raise UsageError(f"/{name} may mean {', '.join('/' + command for command in begins)}: write more of it")
    raise UsageError(f"there is no command /{name}{did_you_mean(name, COMMANDS)} (/help lists them)")


def command(name: str, usage: str, about: str, takes: Kind = "", *, idle: bool = False) -> Callable[[Do], Do]:
    """Enter a function in the table as what a command does."""

    def enter(do: Do) -> Do:
        COMMANDS[name] = Command(name, usage, about, do, takes, idle)
        return do

    return enter


def cut_words(rest: str) -> list[str]:
    """Split at white space outside brackets and quotes, so that options may contain JSON."""
    words: list[str] = []
    depth, quote, word = 0, "", ""
    for sign in rest:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{(":
            depth += 1
        elif sign in ")}]":
            depth -= 1
        elif sign.isspace() and depth <= 0:
            if word:
                words.append(word)
            word = ""
            continue
        word += sign
    return [*words, word] if word else words


def take_flags(rest: str, known: tuple[str, ...]) -> tuple[set[str], str]:
    """Take known flags from the start or the end."""
    flags: set[str] = set()
    words = rest
    again = True
    while again:
        again = False
        for flag in known:
            if words == flag or words.startswith(flag + " "):
                words, again = words.removeprefix(flag).strip(), True
                flags.add(flag)
            elif words.endswith(" " + flag):
                words, again = words.removesuffix(flag).strip(), True
                flags.add(flag)
    return flags, words


def path_of(text: str) -> Path:
    """Return the named file. Raises `UsageError` without a name."""
    if not text:
        raise UsageError("a file is missing there")
    try:
        parts = shlex.split(text)
    except ValueError:
        parts = [text]
    return Path(parts[0] if len(parts) == 1 else text).expanduser()
