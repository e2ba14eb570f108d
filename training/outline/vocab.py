"""The words of the model `arithmetic`, cut as pieces of text; its targets give their places to the words that are new.

So its weights can be taken as the start: numbers, operators, `=` and `;` stand where they stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from plait_bench.tasks.brackets import LETTERS

from ..arithmetic import vocab
from ..vocab import MAX_NUMBER, TARGET_BASE

RULES: tuple[tuple[str, str], ...] = (
    (r"\n+<think>\n[^<]*</think>\n\n", "<at-once>"),
    (r"<think>\n[^<]*</think>\n\n", "<at-once>"),
    (r"\n\nDo not answer yet\. Split[\s\S]*\z", "<outline>"),
    (r"\n\nWhich of these plans is best\?\n\n", "<pick>"),
    (r"\n\nIts number:\n\z", "<go>"),
    (r"\n\nDone: ", "<done>"),
    (r"\n\nDo this step only, and write its result: ", "<do>"),
    (r"\n+How difficult is this step[\s\S]*\z", "<difficult>"),
    (r"\n\nAnswer the question now\.\n", "<answer>"),
)
"""What is put in the place of what, in this order: the instructions of the planner `scale`, and the end of thoughts."""

_OLD = {"+": " + ", "-": " - ", "*": " * ", "=": " = ", ";": "; "}
_MARKS = ("<at-once>", "<outline>", "<pick>", "<done>", "<do>", "<difficult>", "<answer>")
_NEW = (
    *_MARKS, *LETTERS, "(", ")", " = ?", "\n", "\n\n", ". ", ". [difficulty ", "; needs ", "] ", "none", ", ", "Plan ",
)  # fmt: skip


def _build() -> list[str]:
    words = [_OLD.get(word, word) for word in vocab.WORDS]
    for place, word in enumerate(_NEW):
        words[TARGET_BASE + place] = word
    for place in range(TARGET_BASE + len(_NEW), TARGET_BASE + MAX_NUMBER + 1):
        words[place] = f"<free{place}>"
    return words


WORDS = _build()
ID = {word: number for number, word in enumerate(WORDS)}
END = ID["<end>"]
PATTERN = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True) if word not in ("<pad>", "<unk>"))
"""The longest piece first; what is in no piece is unknown."""
_PIECE = re.compile(PATTERN)
_RULES = [(re.compile(rule.replace(r"\z", r"\Z")), mark) for rule, mark in RULES]


def encode(text: str) -> list[int]:
    """Ids of a text, the planner's instructions cut down to their marks; ValueError at what is in no piece."""
    for rule, mark in _RULES:
        text = rule.sub(mark, text)
    ids: list[int] = []
    at = 0
    for found in _PIECE.finditer(text):
        if found.start() != at:
            break
        ids.append(ID[found[0]])
        at = found.end()
    if at != len(text):
        raise ValueError(f"no piece of the vocabulary begins {text[at : at + 30]!r}")
    return ids


def decode(ids: Iterable[int]) -> str:
    """The text of the ids."""
    return "".join(WORDS[number] for number in ids)
