"""Where the results and the progress of a command go.

Results go to standard output, all else to standard error. While a command works, standard output is turned aside, so
that a library that prints cannot spoil the one JSON object.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ParamSpec, TextIO

import typer
from rich.console import Console, RenderableType

from .terminal import console, safe, shown_json

P = ParamSpec("P")

Json = Annotated[bool, typer.Option("--json", help="One JSON object as output; all else on standard error.")]

DEBUG = "PLAIT_DEBUG"
"""Environment variable: set, errors come with their traceback."""
SECOND_WORD = "plait.second-word"
"""Where a command line keeps a word that may be a misspelt second word of a command, and those that there are."""


class Output:
    """Where a command writes.

    `json`: whether the result is one JSON object, with all that is meant for people on standard error.
    """

    def __init__(self, stream: TextIO, as_json: bool) -> None:
        self.json = as_json
        self.stream = stream
        self._consoles: dict[bool, Console] = {}

    @property
    def people(self) -> Console:
        """For what people read as the result: standard output, or standard error beside JSON."""
        return self._console(not self.json)

    @property
    def progress(self) -> Console:
        """For what is shown on the way to the result: standard error."""
        return self._console(False)

    def result(self, value: Mapping[str, Any]) -> None:
        """Write the one JSON object."""
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
        self.stream.write(shown_json(written, self.stream) + "\n")
        self.stream.flush()

    def report(self, record: Mapping[str, Any], *lines: str) -> None:
        """Write the one JSON object, or lines for people in its place."""
        if self.json:
            self.result(record)
            return
        for line in lines:
            self.people.print(safe(line), markup=False, highlight=False, soft_wrap=True)

    def print_whole(self, what: RenderableType) -> None:
        """Print something for people as wide as it is: a narrow screen wraps its lines, and nothing is cut."""
        people = self.people
        before = people.width
        people.width = max(before, people.measure(what, options=people.options.update(width=500)).maximum)
        people.print(what, crop=False)
        people.width = before

    def _console(self, out: bool) -> Console:
        if out not in self._consoles:
            self._consoles[out] = console(self.stream if out else sys.stderr)
        return self._consoles[out]


@contextlib.contextmanager
def opened(as_json: bool) -> Iterator[Output]:
    """Yield the output of a command, with standard output turned aside to standard error until it is done."""
    real = sys.stdout
    aside = _turn_aside(real)
    stream = real if aside is None else os.fdopen(aside, "w", encoding=real.encoding, errors="replace")
    sys.stdout = sys.stderr
    try:
        yield Output(stream, as_json)
    finally:
        sys.stdout = real
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
        if aside is not None:
            os.dup2(aside, 1)
            with contextlib.suppress(OSError):
                stream.close()


def _turn_aside(real: TextIO) -> int | None:
    """Point descriptor 1 at standard error and return a copy of it; `None` where output is not a descriptor's."""
    try:
        if real.fileno() != 1:
            return None
        real.flush()
        copy = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):
        return None
    return copy


class CommandCancelled(Exception):
    """Ctrl-C ended a command that has nothing to show for it. Not `KeyboardInterrupt`, which typer keeps to itself."""


def cancellable(command: Callable[P, None]) -> Callable[P, None]:
    """Have a command raise `CommandCancelled` on Ctrl-C."""

    @functools.wraps(command)
    def watched(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (KeyboardInterrupt, CommandCancelled):
            raise CommandCancelled from None

    return watched
