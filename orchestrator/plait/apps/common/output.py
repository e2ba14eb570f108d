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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ParamSpec, TextIO

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment

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
        """Output for progress: standard error."""
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
        """Print something for people at its full width: a narrow screen wraps its lines, and nothing is cut."""
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


# Text that a terminal shows and does not obey: what models, tools and files say may hold escape sequences.
#
# Whatever writes such text to a stream that may be a terminal goes through here: `console` for rich, `shown` for plain
# lines, `shown_json` for JSON. What goes to a file or a pipe stays as it is.


_SHOWN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}  # U+241B means escape
_SHOWN |= {0x7F: 0x2421}
_SHOWN |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # C1: U+009B begins a sequence on some terminals
_SHOWN |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C), 0xFFFD)
# The last turn text around, so that it reads otherwise than it is (Boucher and Anderson, arXiv 2111.00169).
_SHOWN |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # lone surrogates, which no terminal can be sent


_ESCAPED = {code: f"\\u{code:04x}" for code in _SHOWN if code >= 0x7F}  # JSON escapes those below by itself


def safe(text: str) -> str:
    """Return a text whose control characters are replaced by visible ones; tabs and line ends stay."""
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\r\n", "\n").translate(_SHOWN)


def shown(text: str, stream: TextIO) -> str:
    """Return a text as it may be written to a stream: `safe` for a terminal."""
    return safe(text) if stream.isatty() else text


def shown_json(text: str, stream: TextIO) -> str:
    """Return JSON as it may be written to a stream: for a terminal with its control characters escaped."""
    return text.translate(_ESCAPED) if stream.isatty() else text


_ASCII = str.maketrans(
    {**dict.fromkeys("├└", "|"), "│": "|", "─": "-", "✓": "+", "✗": "x", "−": "-", "●": "*", "○": "o", "◆": "#"}
    | {"·": "-", "…": ".", "–": "-", "×": "x", "’": "'"}
)
"""Replacements for the characters of trees and tables that a stream's encoding lacks; one character each, so that
columns stay aligned."""


def console(stream: TextIO) -> Console:
    """Return a console for a stream."""
    made = Console(file=stream, highlight=False, soft_wrap=False)
    if made.is_terminal:
        made.push_render_hook(CleanOutput())
    if not made.encoding.startswith("utf"):
        made.push_render_hook(CleanOutput(lambda text: text.translate(_ASCII)))
    return made


class _Clean:
    """Something to print, with the control characters of its text made visible."""

    def __init__(self, inner: RenderableType, clean: Callable[[str], str]) -> None:
        self._inner, self._clean = inner, clean

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _cleaned(console.render(self._inner, options), self._clean)


class CleanOutput(RenderHook):
    """Keeps control characters out of all that a console prints, but for those of its own styles.

    Use it as `console.push_render_hook(CleanOutput())`. `clean`: what is done to each text, in place of `safe`.
    """

    def __init__(self, clean: Callable[[str], str] = safe) -> None:
        self._clean = clean

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return the same things to print, cleaned."""
        return [_Clean(renderable, self._clean) for renderable in renderables]


def _cleaned(segments: Iterable[Segment], clean: Callable[[str], str]) -> Iterator[Segment]:
    for segment in segments:
        if segment.control:
            yield segment
        else:
            yield Segment(clean(segment.text), segment.style)
