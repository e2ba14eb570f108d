"""The dialect of the bundled Countdown model: its words and its legal steps (see training/FORMAT.md)."""

from __future__ import annotations

import re

from . import Dialect, fill

_MAX_VALUE = 127
_PROMPT = re.compile(r"\bT(\d{1,3})((?: \d{1,3})+) <go>")


class CountdownDialect(Dialect):
    """Items are `a op b = c | x y`: a first step and the two numbers that remain beside its result."""

    def begin(self, fields: dict[str, str], prompt: str, notes: str) -> str | None:
        """Return `<child> T n1 n2 n3 <go>`, or `None` for an illegal step or one with missing numbers."""
        problem = _PROMPT.search(prompt)
        if problem is None:
            return None
        a, b, c = (int(fields[name]) for name in "abc")
        rest = [int(number) for number in fields["rest"].split()]
        if sorted(map(int, problem[2].split())) != sorted((a, b, *rest)) or _apply(a, fields["op"], b) != c:
            return None
        numbers = " ".join(map(str, sorted((c, *rest), reverse=True)))
        return fill(self.header, {"target": problem[1], "numbers": numbers})


def _apply(a: int, op: str, b: int) -> int | None:
    """Return `a op b`, or `None` where the model's rules forbid it: the larger number stands first, division is exact
    and not by 1, and every result lies in 1..127."""
    if a < b:
        return None
    match op:
        case "+":
            value = a + b
        case "-":
            value = a - b
        case "*":
            value = a * b
        case _:
            if b < 2 or a % b:
                return None
            value = a // b
    return value if 1 <= value <= _MAX_VALUE else None
