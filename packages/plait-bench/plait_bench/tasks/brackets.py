"""Task `brackets`: compute a sum with brackets, for the bundled model `outline`, which splits such sums.

Its questions have dependent parts of known difficulty, as needed to measure planners that choose their effort per step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import JsonValue, PrivateAttr

from plait.core.errors import TaskError
from plait.core.task import Style, Task

__all__ = ["LARGEST", "LETTERS", "BracketStep", "Brackets", "read", "steps", "value", "worked"]

LARGEST = 127
"""The model's largest number."""
LETTERS = "abcdefgh"
"""Names of the steps; so there are at most eight."""
_EXAMPLE = "write for example: (14 - 3 * 4) * 2 + (7 + 5)"
_WORD = re.compile(r"\d{1,3}|[-+*()]", re.ASCII)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?(?!\w)", re.ASCII)


class BracketStep(NamedTuple):
    """One line of arithmetic: a pair of brackets, or the remaining sum without brackets."""

    name: str
    words: tuple[str, ...]
    """Numbers, operators, and names of earlier steps."""
    needs: tuple[int, ...]
    """Places of those steps, from 0."""

    @property
    def operations(self) -> int:
        """How many there are in it."""
        return len(self.words) // 2

    @property
    def text(self) -> str:
        """`c = a * 2 + b`."""
        return f"{self.name} = {' '.join(self.words)}"


def read(text: str) -> list[str]:
    """Return the words of a sum. Raises `TaskError`."""
    bare = text.rstrip().removesuffix("?").rstrip().removesuffix("=") if len(text) <= 400 else ""
    words = _WORD.findall(bare)
    if not words or "".join(words) != "".join(bare.split()):
        shown = text if len(text) <= 60 else text[:57] + "…"
        raise TaskError(f"{shown!r} is not a sum of numbers and brackets with + - *; {_EXAMPLE}")
    return [str(int(word)) if word.isdigit() else word for word in words]


def steps(words: Sequence[str]) -> list[BracketStep]:
    """Return the steps of a sum in topological order: brackets as they close, then the remaining sum. Raises
    `TaskError` for an invalid sum, or one with more than eight steps."""
    known: list[BracketStep] = []
    open_: list[list[str]] = [[]]
    for word in words:
        if word == "(":
            open_.append([])
        elif word == ")":
            if len(open_) < 2:
                raise TaskError(f"a bracket is closed that was not opened; {_EXAMPLE}")
            open_[-2].append(_close(known, open_.pop()))
        else:
            open_[-1].append(word)
    if len(open_) != 1:
        raise TaskError(f"a bracket is not closed; {_EXAMPLE}")
    _close(known, open_[0])
    return known


def _close(known: list[BracketStep], words: list[str]) -> str:
    """Add the step of a line, and return its name."""
    turns = all((word in "+-*") == bool(place % 2) for place, word in enumerate(words))
    if len(words) < 3 or len(words) % 2 == 0 or not turns:
        raise TaskError(f"{' '.join(words)!r} is not a line of numbers with operators between them; {_EXAMPLE}")
    if len(known) == len(LETTERS):
        raise TaskError(f"there are more than {len(LETTERS)} steps: a sum has at most {len(LETTERS) - 1} brackets")
    name = LETTERS[len(known)]
    known.append(BracketStep(name, tuple(words), tuple(LETTERS.index(word) for word in words if word in LETTERS)))
    return name


def worked(words: Sequence[str]) -> list[tuple[int, str, int, int]] | None:
    """Return a line's operations in order, `*` first; `None` if a value leaves 0..127."""
    left = list(words)
    out: list[tuple[int, str, int, int]] = []
    while len(left) > 1:
        at = next((i for i, word in enumerate(left) if word == "*"), 1)
        a, op, b = int(left[at - 1]), left[at], int(left[at + 1])
        c = {"+": a + b, "-": a - b, "*": a * b}[op]
        if not 0 <= c <= LARGEST:
            return None
        out.append((a, op, b, c))
        left[at - 1 : at + 2] = [str(c)]
    return out


def value(made: Sequence[BracketStep]) -> int | None:
    """Return the value of the last step; `None` if an intermediate value leaves 0..127."""
    known: dict[str, str] = {}
    for step in made:
        done = worked([known.get(word, word) for word in step.words])
        if done is None:
            return None
        known[step.name] = str(done[-1][3])
    return int(known[made[-1].name])


class Brackets(Task):
    """`(14 - 3 * 4) * 2 + (7 + 5)`: numbers and values 0..127 with + - * and brackets, at most seven pairs; `*` comes
    first.

    An answer is a number: the last one of a text.
    """

    _steps: tuple[BracketStep, ...] = PrivateAttr()
    _words: tuple[str, ...] = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        self._words = tuple(read(self.text))
        self._steps = tuple(steps(self._words))
        if value(self._steps) is None or any(word.isdigit() and int(word) > LARGEST for word in self._words):
            raise TaskError(f"{self.text!r} leaves the numbers 0..{LARGEST} on its way; {_EXAMPLE}")

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the sum and `= ?`."""
        return f"{''.join(f' {word} ' if word in '+-*' else word for word in self._words)} = ?"

    def chat(self) -> bool:
        """Render prompts by the model's chat template, which keeps their text but tokenizes it as a whole."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the last number of a text, or `None` if it has none or it is not a whole number (`45.9`)."""
        numbers = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
        return int(numbers[-1]) if numbers and re.fullmatch(r"-?\d{1,18}", numbers[-1]) else None

    def key(self, answer: JsonValue) -> str:
        """Return the number as text."""
        return str(answer).strip()

    def verify(self, answer: JsonValue) -> bool:
        """Return whether this is the sum's result."""
        return self.key(answer) == str(self.right())

    def right(self) -> int:
        """Return the value of the sum."""
        result = value(self._steps)
        assert result is not None
        return result

    def steps(self, text: str) -> list[str]:
        """Return the operations that a text carries out."""
        return [" ".join(part.split()) for part in re.split(r"[;\n]", text) if "=" in part]
