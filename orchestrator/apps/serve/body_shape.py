"""How many values a body holds, counted while it arrives: what is too much is refused before anything is made of it.

Reading JSON, and making a request of it, takes time by the number of its values, not by its bytes: a text of 8 MB is
read in milliseconds, two million numbers in the same bytes are not.
"""

from __future__ import annotations

import re

__all__ = ["BodyShape"]

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_REST = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class BodyShape:
    """Counts the values of a JSON text that comes in pieces: openings and commas outside of strings.

    >>> shape = BodyShape()
    >>> for piece in (b'{"a": [1, 2, "x,', b'[y"]}'):
    ...     shape.feed(piece)
    >>> shape.values
    4
    """

    def __init__(self) -> None:
        self.values = self.strings = 0
        self._within = self._escaped = False
        """Whether the last piece ended within a string, and there behind a backslash."""

    def feed(self, piece: bytes) -> None:
        """Count those of one more piece."""
        if self._within:
            piece = self._after_the_string(piece)
        bare, strings = _STRING.subn(b"", piece)
        self.strings += strings
        opened = bare.find(b'"')
        if opened >= 0:
            tail = bare[opened + 1 :]
            self._within = True
            self._escaped = (len(tail) - len(tail.rstrip(b"\\"))) % 2 == 1
            bare = bare[:opened]
        self.values += bare.count(b",") + bare.count(b"[") + bare.count(b"{")

    def _after_the_string(self, piece: bytes) -> bytes:
        """Return what follows the string that the last piece has left open."""
        start = 1 if self._escaped else 0
        found = _REST.match(piece, start)
        end = len(piece) if found is None else found.end()
        if end < len(piece) and piece[end : end + 1] == b'"':
            self._within = self._escaped = False
            return piece[end + 1 :]
        self._escaped = end < len(piece)  # only a backslash at the end stops the match
        return b""
