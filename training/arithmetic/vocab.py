"""The words of Countdown, with five of its reserved ones in use, so that its weights can be taken as the start."""

from __future__ import annotations

from collections.abc import Iterable

from .. import vocab

NEW = ("<value>", "<step>", "<sum>", "<yes>", "<no>")
_RESERVED = {f"<reserved{number}>": word for number, word in enumerate(NEW)}
WORDS = [_RESERVED.get(word, word) for word in vocab.WORDS]
ID = {word: number for number, word in enumerate(WORDS)}
END = ID["<end>"]


def encode(text: str) -> list[int]:
    """Ids of a text of words separated by spaces; KeyError on a word outside the vocabulary."""
    return [ID[word] for word in text.split()]


def decode(ids: Iterable[int]) -> str:
    """The text of the ids: words joined by single spaces."""
    return " ".join(WORDS[i] for i in ids)
