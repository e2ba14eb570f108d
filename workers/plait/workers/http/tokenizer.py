"""The tokenizer of a served model, where its files are on this machine too.

A request to the server for each piece of a prompt costs more than tokenising it here. The local tokenizer is used once
the server has returned the same ids for a few pieces.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

CHECKED = 4
"""Pieces of text on which the server has to agree first."""


class Nearby:
    """A tokenizer file that may be the one that a server uses."""

    def __init__(self, folder: str | None) -> None:
        """Read `tokenizer.json` in the folder that a server names as its model's, if it is one here. Blocks."""
        self._tokenizer: Any = None
        self._agreed = 0
        path = Path(folder) / "tokenizer.json" if folder else None
        if path is not None and path.is_absolute() and path.is_file():
            with contextlib.suppress(Exception):  # an unreadable file is as good as none
                from tokenizers import Tokenizer

                self._tokenizer = Tokenizer.from_file(str(path))

    def ids(self, text: str) -> tuple[int, ...] | None:
        """Return the token ids of a piece of text that does not open a prompt; `None` without a tokenizer."""
        return None if self._tokenizer is None else tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def trusted(self) -> bool:
        """Whether the server need not be asked any more."""
        return self._agreed >= CHECKED

    def compare(self, ours: tuple[int, ...] | None, theirs: tuple[int, ...]) -> None:
        """Take note of what the server said; one difference, and the tokenizer is not used."""
        if ours == theirs:
            self._agreed += 1
        else:
            self._tokenizer, self._agreed = None, 0
