"""Token ids of long prompts, so that a conversation that continues is not tokenised again from its beginning.

Text is encoded in pieces that begin with a special token. A fast tokenizer splits a text at those tokens first and
encodes what lies between two of them alone, so the ids of the pieces, joined, are the ids of the text.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_CACHED_TOKENS = 1 << 19
"""Maximum number of token ids in a cache; each takes up to 36 bytes."""
PIECE_CHARS = 4096
"""Minimum number of characters in a piece, except the last of a text."""
MAX_SPLIT_TOKENS = 64


class TokenCache(Generic[T]):
    """The most recently used values of known sizes (in tokens). Any thread may use it."""

    def __init__(self, max_tokens: int = MAX_CACHED_TOKENS) -> None:
        self._room = max_tokens
        self._values: dict[Hashable, tuple[T, int]] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> T | None:
        """Return a value, or `None`."""
        with self._lock:
            if (entry := self._values.pop(key, None)) is None:
                return None
            self._values[key] = entry
            return entry[0]

    def put(self, key: Hashable, value: T, tokens: int) -> None:
        """Add a value; the least recently used make room for it."""
        with self._lock:
            self._room -= tokens - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, tokens
            while self._room < 0:
                self._room += self._values.pop(next(iter(self._values)))[1]


class TextSplitter:
    """Splits texts into pieces that a tokenizer may encode one by one."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        """`template`: the chat template, which contains the special tokens that matter."""
        tokens = find_split_tokens(tokenizer, template)
        self._pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None

    def split(self, text: str) -> Iterator[str]:
        """Yield the pieces. Those of a text are the first of any text that continues it, except the last."""
        begin = 0
        while self._pattern is not None and (found := self._pattern.search(text, begin + PIECE_CHARS)) is not None:
            yield text[begin : found.start()]
            begin = found.start()
        yield text[begin:]


def find_split_tokens(tokenizer: Any, template: str) -> list[str]:
    """Return the special tokens before which a text may be split without a change of its ids."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return []
    # The first encoding turns the tokenizer's truncation off, which must not happen while another thread uses it.
    tokenizer.encode("", add_special_tokens=False)
    # Tokens with `normalized` are found in the normalised text only, piece by piece.
    added = [token for token in fast.get_added_tokens_decoder().values() if not token.normalized]
    named = [
        token.content
        for token in added
        # These depend on the character before them.
        if not (token.lstrip or token.single_word) and len(token.content) > 1 and token.content in template
    ]
    safe = [content for content in named[:MAX_SPLIT_TOKENS] if not any(_hides(each.content, content) for each in added)]
    return [content for content in safe if _is_split(tokenizer, content)]


def _hides(other: str, token: str) -> bool:
    """Whether an occurrence of `other` may begin before one of `token` and overlap it."""
    return (token in other[1:]) or any(token.startswith(other[begin:]) for begin in range(1, len(other)))


def _is_split(tokenizer: Any, token: str) -> bool:
    """Whether an example is split before a token: a tokenizer may prepare texts in a way of its own."""
    pieces = ["A b \n", f"{token}c d. ", f"{token}\n e"]
    whole, *ids = (tokenizer.encode(text, add_special_tokens=False) for text in ("".join(pieces), *pieces))
    return whole == [id_ for piece in ids for id_ in piece]
