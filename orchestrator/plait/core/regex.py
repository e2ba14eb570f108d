"""Regular expressions given as data in requests, plans, rows or journals. RE2 runs them in bounded linear time.

Python's `re` backtracks, so a short expression can block the process for ever. Expressions in plait's own source still
use `re` (`tests/test_regexes.py` checks that their time is linear).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

try:
    import re2  # pyright: ignore[reportMissingTypeStubs]
except ImportError:  # it has no wheels for musl and for the newest Pythons, and plait itself gives no expressions
    re2 = None

LONGEST = 4000
"""Characters of an expression."""
LARGEST = 10_000
"""Maximum size of the compiled program in steps: a repetition such as `.{500}` has 500 steps."""
WORK = 1 << 25
"""Maximum product of steps and characters per use: a tenth of a second at worst. The rest of the text is not searched:
with an expression of 20 steps, the part after 1.6 million bytes."""
_WINDOW = 512
"""Size in bytes of the first search window. Otherwise an expression that must see the end of the text (`a.*z|a`) would
read the whole text for every match."""
_MATCHES = 20_000
"""Most matches of one text."""
_SHORT = 64
"""Minimum cost in bytes of a search in the first window, which finds most matches."""


class _Match(Protocol):
    def span(self, group: int = 0) -> tuple[int, int]: ...


class _CompiledExpression(Protocol):
    groups: int
    groupindex: Mapping[str, int]
    programsize: int

    def search(self, text: bytes, pos: int, endpos: int) -> _Match | None: ...
    def fullmatch(self, text: bytes) -> _Match | None: ...


class _Engine(Protocol):
    error: type[Exception]

    def Options(self) -> _Options: ...  # noqa: N802
    def compile(self, pattern: str, options: _Options) -> _CompiledExpression: ...


class _Options(Protocol):
    log_errors: bool
    max_mem: int


_RE2 = cast("_Engine", re2)
"""`None` where it is not installed: `expression` then refuses, because `re` would not be bounded."""


@dataclass(frozen=True, slots=True)
class ExpressionMatch:
    """A match."""

    text: str
    """All of it."""
    groups: Sequence[str | None]
    """The text of each group; `None` of one that took no part."""
    named: Mapping[str, str | None]
    """The text of each named group."""


class Expression:
    """A compiled expression. Made by `expression`."""

    def __init__(self, pattern: str) -> None:
        options = _RE2.Options()
        options.log_errors = False  # the caller gets them
        self._compiled = _RE2.compile(pattern, options)
        self._names = dict(self._compiled.groupindex)
        self.size: int = self._compiled.programsize
        self._most = WORK // max(1, self.size)

    def search(self, text: str) -> ExpressionMatch | None:
        """Return the first match."""
        data = text.encode("utf-8", "replace")
        match = self._compiled.search(data, 0, _boundary(data, self._most))
        return None if match is None else self._to_match(data, match)

    def fullmatch(self, text: str) -> ExpressionMatch | None:
        """Return the match of the whole text."""
        data = text.encode("utf-8", "replace")
        match = self._compiled.fullmatch(data) if len(data) <= self._most else None
        return None if match is None else self._to_match(data, match)

    def finditer(self, text: str) -> Iterator[ExpressionMatch]:
        """Yield non-overlapping matches from left to right until the work limit is reached. A match is determined by
        the next few hundred characters, even if the whole text would give a longer match."""
        data = text.encode("utf-8", "replace")
        start, width, left, matches = 0, _WINDOW, self._most, 0
        while start <= len(data) and left > 0 and matches < _MATCHES:
            end = _boundary(data, start + min(width, left))
            match = self._compiled.search(data, start, end)
            if match is None or (match.span()[1] == end < len(data)):  # it may be longer, or begin later
                left -= end - start
                if end < len(data):
                    width *= 2
                    continue
                if match is None:
                    return
            yield self._to_match(data, match)
            first, last = match.span()
            left, matches = left - max(_SHORT, last - start), matches + 1
            start, width = last if last > first else max(last + 1, _boundary(data, last + 1)), _WINDOW

    def _to_match(self, data: bytes, match: _Match) -> ExpressionMatch:
        groups = [_text(data, match.span(number)) for number in range(1, self._compiled.groups + 1)]
        named = {name: groups[number - 1] for name, number in self._names.items()}
        return ExpressionMatch(_text(data, match.span()) or "", groups, named)


@functools.lru_cache(maxsize=512)
def expression(pattern: str) -> Expression:
    """Return a compiled expression, in the syntax of RE2 (github.com/google/re2/wiki/Syntax). Raises `ValueError` for
    an invalid one, one that looks around or back (RE2 has neither), or a too large one.

    >>> [found.text for found in expression(r"#\\d+").finditer("#1 and #22.")]
    ['#1', '#22']
    >>> expression("(a)\\\\1")
    Traceback (most recent call last):
    ...
    ValueError: '(a)\\\\1' is not a regular expression that can be used here: invalid escape sequence: \\1 (they …)
    """
    if re2 is None:
        raise ValueError(f"the regular expression {pattern[:80]!r} needs RE2: pip install 'plait[regex]'")
    if len(pattern) > LONGEST:
        raise ValueError(f"a regular expression of {len(pattern):,} characters; {LONGEST:,} are the most")
    try:
        made = Expression(pattern)
    except (_RE2.error, UnicodeEncodeError) as error:
        cause: object = error.args[0] if error.args else ""
        reason = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        raise ValueError(
            f"{pattern[:80]!r} is not a regular expression that can be used here: {reason} "
            "(they are read by RE2, which has no lookaround and no back-references)"
        ) from None
    if made.size > LARGEST:
        raise ValueError(f"the regular expression {pattern[:80]!r} is too large: make its repetitions smaller")
    return made


def _text(data: bytes, span: tuple[int, int]) -> str | None:
    return None if span[0] < 0 else data[span[0] : span[1]].decode("utf-8", "replace")


def _boundary(data: bytes, place: int) -> int:
    """Return the first character boundary at or after `place`, or the end."""
    while place < len(data) and data[place] & 0xC0 == 0x80:
        place += 1
    return min(place, len(data))
