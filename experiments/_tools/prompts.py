"""Texts of a known number of the bundled model's tokens, and what they take of a cache."""

from __future__ import annotations

import random

from plait.workers._shared.resources import cpu_dtype

__all__ = ["BYTES_A_TOKEN", "unique", "words"]

BYTES_A_TOKEN = 2 * 5 * 128 * (2 if cpu_dtype("auto") == "bfloat16" else 4)
"""Keys and values of a token: five layers of 128."""


def words(rng: random.Random, tokens: int) -> str:
    """Return a text of `n` tokens."""
    return " ".join(str(rng.randrange(128)) for _ in range(tokens))


def unique(texts: list[str]) -> int:
    """Return the tokens of the trie of some prompts; a word is a token."""
    seen: set[int] = set()
    for text in texts:
        key = 0
        for word in text.split():
            key = hash((key, word))
            seen.add(key)
    return len(seen)
