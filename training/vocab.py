"""The vocabulary: which words exist and which id each has.

Every integer and every control word is one token, so that the model never has to assemble a number from
digits. The target has tokens of its own (`T24`): a number in the role of the goal is distinct from one to
calculate with. This file does not know what any mode does with the words.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_NUMBER = 127
VOCAB_SIZE = 288

_SYMBOLS = ["+", "-", "*", "/", "=", ";", "|"]
_CONTROL = [
    "<pad>", "<unk>", "<end>", "<serial>", "<parent>", "<child>", "<direct>", "<go>", "<spawn>", "<wait>",
    "<join>", "<hit>", "<none>", "<lo>", "<hi>", "<try>",
]  # fmt: skip


def _build() -> list[str]:
    words = [str(n) for n in range(MAX_NUMBER + 1)]
    words += [f"T{n}" for n in range(MAX_NUMBER + 1)]
    words += _SYMBOLS + _CONTROL
    words += [f"<reserved{i}>" for i in range(VOCAB_SIZE - len(words))]
    return words


WORDS: list[str] = _build()
ID: dict[str, int] = {word: i for i, word in enumerate(WORDS)}
TARGET_BASE = MAX_NUMBER + 1  # the id of T0; the id of the number n is n itself
PAD, END = ID["<pad>"], ID["<end>"]


def encode(text: str) -> list[int]:
    """Ids of a text of words separated by spaces; KeyError on a word outside the vocabulary."""
    return [ID[word] for word in text.split()]


def decode(ids: Iterable[int]) -> str:
    """The text of the ids: words joined by single spaces."""
    return " ".join(WORDS[i] for i in ids)
