"""Text that a terminal shows and does not obey: what models, tools and files say may hold escape sequences.

Whatever writes such text to a stream that may be a terminal goes through here: `console` for rich, `shown` for plain
lines, `shown_json` for JSON. What goes to a file or a pipe stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment

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
