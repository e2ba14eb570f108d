"""Task `countdown`: reach a target from four numbers with + - * /, each number used once.

Prompts have the format of the bundled model; a verifier checks solutions by exact integer arithmetic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from pydantic import Field, JsonValue, PrivateAttr

from plait.core.errors import TaskError
from plait.core.task import Style, Task

from ..countdown import draw

__all__ = ["Countdown"]


def remaining(numbers: Sequence[int], steps: Iterable[tuple[int, str, int, int]]) -> tuple[int, ...] | None:
    """Return the numbers left by exact steps, in descending order; `None` if a step is wrong or uses a missing
    number."""
    left = list(numbers)
    for a, op, b, c in steps:
        for number in (a, b):
            if number not in left:
                return None
            left.remove(number)
        if _result(a, op, b) != c:
            return None
        left.append(c)
    return tuple(sorted(left, reverse=True))


def moves(numbers: tuple[int, ...]) -> list[tuple[int, str, int, int]]:
    """Return every possible exact step, the larger number first, without negative results and zero divisors."""
    exact: dict[tuple[int, str, int, int], None] = {}
    for a, b in combinations(sorted(numbers, reverse=True), 2):
        for op in "+-*/":
            c = _result(a, op, b)
            if c is not None and c >= 0:
                exact[a, op, b, c] = None
    return list(exact)


@lru_cache(maxsize=1 << 17)
def solvable(numbers: tuple[int, ...], target: int) -> bool:
    """Return whether some sequence of steps with all numbers ends in the target. `numbers` are in descending order."""
    if len(numbers) == 1:
        return numbers[0] == target
    for step in moves(numbers):
        left = remaining(numbers, (step,))
        if left is not None and solvable(left, target):
            return True
    return False


def _result(a: int, op: str, b: int) -> int | None:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a // b if b and a % b == 0 else None
        case _:
            return None


COUNT = 4
NUMBERS = (1, 25)
TARGETS = (10, 100)
WIDTHS = (2, 8)
"""Branches and threads that the model was trained for."""
WORDED = (1, 127)
"""What it has words for."""

_TEXT = re.compile(r"\s*(\d{1,9}(?:(?:\s*,\s*|\s+)\d{1,9})*)\s*(?:->|→|=>)\s*(\d{1,9})\s*")
_STEP = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})\s*", re.ASCII)
_OPERATION = re.compile(r"\b(\d{1,9}) ?([-+*/]) ?(\d{1,9}) ?= ?(\d{1,9})\b(?!\Z)", re.ASCII)
"""One inside a text; a number at its very end may continue."""
_MAX_CLAIM = 400  # characters; three steps are shorter however they are spaced


class _Step(NamedTuple):
    a: int
    op: str
    b: int
    c: int

    def __str__(self) -> str:
        return f"{self.a}{self.op}{self.b}={self.c}"


class _Expr(NamedTuple):
    """A number, or a sum or product of parts. In a sum a part's sign is ±1; in a product it is the exponent."""

    value: int
    op: str
    parts: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        """Canonical text: the parts are sorted."""
        match self.op:
            case "+":
                return "(" + "".join(("+" if sign > 0 else "-") + part for sign, part in sorted(self.parts)[::-1]) + ")"
            case "*":
                return "(" + "".join(("*" if sign > 0 else "/") + part for sign, part in sorted(self.parts)[::-1]) + ")"
            case _:
                return str(self.value)


class Countdown(Task):
    """`3 5 7 11 -> 24`: four numbers 1..25 and a target 10..100, as in the bundled model's training.

    An answer is a list of steps such as `["11-7=4", "5*4=20", …]`.
    """

    count: int = Field(default=COUNT, ge=3, le=6, description="How many numbers there are. The bundled model knows 4.")
    any_width: bool = Field(
        default=False,
        description="Ask for as many branches or threads as are wanted, 1..127, also where the bundled model was "
        "not trained for it (it was for 2..8).",
    )

    _numbers: tuple[int, ...] = PrivateAttr()
    _target: int = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "…"
        words = {3: "three", 4: "four", 5: "five", 6: "six"}[self.count]
        shape = " ".join(("3", "5", "7", "11", "2", "9")[: self.count])
        example = f"write {words} numbers and a target, for example: {shape} -> 24"
        parts = _TEXT.fullmatch(self.text) if len(self.text) <= 200 else None
        if parts is None:
            raise TaskError(f"{shown!r} is not a Countdown puzzle; {example}")
        numbers = [int(word) for word in re.findall(r"\d+", parts[1])]
        target = int(parts[2])
        if len(numbers) != self.count:
            raise TaskError(f"{shown!r} has {len(numbers)} numbers; {example}")
        outside = [n for n in numbers if not NUMBERS[0] <= n <= NUMBERS[1]]
        if outside:
            raise TaskError(f"{outside[0]} is out of range: the numbers are {NUMBERS[0]}..{NUMBERS[1]}; {example}")
        if not TARGETS[0] <= target <= TARGETS[1]:
            raise TaskError(f"the target {target} is out of range: it is {TARGETS[0]}..{TARGETS[1]}; {example}")
        self._numbers, self._target = tuple(sorted(numbers, reverse=True)), target

    @property
    def numbers(self) -> tuple[int, ...]:
        """The four numbers, in descending order."""
        return self._numbers

    @property
    def target(self) -> int:
        """What to reach."""
        return self._target

    @classmethod
    def drawn(cls, count: int, seed: int) -> list[tuple[str, JsonValue]]:
        """Return problems of the test split, which the bundled model never saw; the task itself checks answers."""
        return [(problem.text, None) for problem in draw(count, seed)]

    @classmethod
    def row_text(cls, row: object) -> str:
        """Return the text of a row `{"numbers": [3, 5, 7, 11], "target": 24}`. Raises `ValueError`."""
        match row:
            case {"numbers": [*numbers], "target": target} if all(type(number) is int for number in (*numbers, target)):
                return f"{' '.join(map(str, numbers))} -> {target}"
        raise ValueError('has no whole numbers; write {"numbers": [3, 5, 7, 11], "target": 24}')

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt in the bundled model's format; `width` (branches or threads) is clipped to 2..8, or with
        `any_width` to 1..127."""
        head = {"serial": "<serial>", "direct": "<direct>", "threads": "<parent>"}[style]
        least, most = WORDED if self.any_width else WIDTHS
        k = "" if style == "direct" else f" {min(max(width, least), most)}"
        return f"{head}{k} T{self._target} {' '.join(map(str, self._numbers))} <go>"

    def extract(self, text: str) -> JsonValue:
        """Return the solution steps in a text, in text order, or `None`.

        The steps follow the last `<hit>`, or are the whole text without a `<hit>`, separated by `;` (or in a JSON list,
        the form of the result). A solution with other text, or a truncated one, gives `None`.
        """
        steps = _claim(text)
        return [str(step) for step in steps] if steps else None

    def key(self, answer: JsonValue) -> str:
        """Return the canonical expression of the steps, with sorted terms and factors and without redundant brackets:
        `a-(b-c)` equals `c+a-b`, but `a*(b+c)` differs from `a*b+a*c`. Steps without an expression are their own key
        after `!`."""
        steps = _steps(answer)
        built = self._build(steps) if steps else None
        # Wrong steps are still an answer that branches may share; the mark separates them from right answers.
        if built is None:
            text = ";".join(map(str, steps)) if steps else json.dumps(answer)
            return "!" + text[:_MAX_CLAIM]
        return str(built)

    def verify(self, answer: JsonValue) -> bool:
        """Return whether the steps are exact, use every number once and nothing else, and end in the target."""
        steps = _steps(answer)
        if not steps:
            return False
        built = self._build(steps)
        return built is not None and built.value == self._target

    def steps(self, text: str) -> list[str]:
        """Return the operations in a text (`a op b = c`), in order. In a sum or product the larger number comes first,
        so that `3+5=8` equals `5 + 3 = 8`."""
        operations = [_Step(int(a), op, int(b), int(c)) for a, op, b, c in _OPERATION.findall(text)]
        return [str(_Step(max(s.a, s.b), s.op, min(s.a, s.b), s.c) if s.op in "+*" else s) for s in operations]

    def state_key(self, partial: str) -> str | None:
        """Return the numbers left: `4 5 8 -> 24` for any steps that leave these numbers. `None` for wrong steps."""
        left = self._remaining_numbers(partial)
        return None if left is None else f"{' '.join(map(str, left))} -> {self._target}"

    def complete(self, partial: str) -> bool:
        """Return whether one number is left, or a step was wrong."""
        left = self._remaining_numbers(partial)
        return left is None or len(left) == 1

    def value(self, partial: str) -> float:
        """Return 1 if the remaining numbers can reach the target, else 0, by exact search."""
        left = self._remaining_numbers(partial)
        return float(left is not None and solvable(left, self._target))

    def _remaining_numbers(self, partial: str) -> tuple[int, ...] | None:
        written = [part for part in partial.strip().split(";") if part.strip()]
        steps = _steps(list(written))
        return None if steps is None else remaining(self._numbers, steps)

    def explain(self, answer: JsonValue) -> str:
        """Return the steps in readable form: `11 - 7 = 4, 5 × 4 = 20, …`."""
        steps = _steps(answer)
        if not steps:
            return "no answer"
        return ", ".join(f"{s.a} {s.op} {s.b} = {s.c}" for s in steps).translate(str.maketrans("-*/", "−×÷"))

    def _build(self, steps: list[_Step]) -> _Expr | None:
        """Return the expression that exact steps over all the numbers build, or `None`.

        Of two equal numbers, use the most recent first, so that equal steps give one expression.
        """
        if len(steps) != self.count - 1:
            return None
        pool = [_Expr(n, "", ()) for n in self._numbers]
        for step in steps:
            pair: list[_Expr] = []
            for value in (step.a, step.b):
                at = next((i for i in reversed(range(len(pool))) if pool[i].value == value), None)
                if at is None:
                    return None
                pair.append(pool.pop(at))
            made = _combine(pair[0], step.op, pair[1])
            if made is None or made.value != step.c:
                return None
            pool.append(made)
        return pool[0]


def _combine(a: _Expr, op: str, b: _Expr) -> _Expr | None:
    """Return `a op b`, flattened into a sum or product where it continues one; `None` if a division is not exact."""
    value = _result(a.value, op, b.value)
    if value is None:
        return None
    kind = "+" if op in "+-" else "*"
    sign = 1 if op in "+*" else -1
    return _Expr(value, kind, (*_parts(a, kind, 1), *_parts(b, kind, sign)))


def _parts(expr: _Expr, kind: str, sign: int) -> tuple[tuple[int, str], ...]:
    if expr.op == kind:
        return tuple((sign * inner, part) for inner, part in expr.parts)
    return ((sign, str(expr)),)


def _claim(text: str) -> list[_Step] | None:
    """Read the steps that a text ends with."""
    text = text.strip()
    if text.startswith("["):
        if len(text) > _MAX_CLAIM:
            return None
        try:
            return _steps(json.loads(text))
        except (ValueError, RecursionError):
            return None
    start = text.rfind("<hit>")
    text = (text[start + 5 :] if start >= 0 else text).strip().removesuffix("<end>").strip().rstrip(";")
    if not text or len(text) > _MAX_CLAIM:
        return None
    return _steps(text.split(";"))


def _steps(value: object) -> list[_Step] | None:
    """Read a list of steps, each a string; `None` if any cannot be read."""
    if not isinstance(value, list):
        return None
    steps: list[_Step] = []
    items: list[object] = value
    for item in items:
        parts = _STEP.fullmatch(item) if isinstance(item, str) and len(item) <= _MAX_CLAIM else None
        if parts is None:
            return None
        steps.append(_Step(int(parts[1]), parts[2], int(parts[3]), int(parts[4])))
    return steps
