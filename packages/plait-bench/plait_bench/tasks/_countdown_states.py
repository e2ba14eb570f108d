"""States of a Countdown puzzle: the numbers left after some steps, and their solvability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations


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
