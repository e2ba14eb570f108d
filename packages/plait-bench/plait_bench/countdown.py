"""Countdown problems for demonstrations and evaluations: drawn from the test split, and checked.

The check has its own exact integer arithmetic, independent of planners, merges and tasks.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NUMBERS = (1, 25)
TARGETS = (10, 100)
LIMIT = 127
"""Largest intermediate result of a problem that is drawn."""

_STEP = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*=\s*(\d{1,9})\s*", re.ASCII)


class CountdownProblem(NamedTuple):
    """Four numbers and what to reach."""

    numbers: tuple[int, ...]
    target: int

    @property
    def text(self) -> str:
        """As the task `countdown` reads it: `3 5 7 11 -> 24`."""
        return f"{' '.join(map(str, self.numbers))} -> {self.target}"

    def is_right(self, answer: object) -> bool:
        """Return whether an answer reaches the target, by exact arithmetic."""
        return is_right(self, answer)

    def record(self) -> dict[str, object]:
        """Return the problem's record."""
        return {"numbers": list(self.numbers), "target": self.target}


def is_held_out(numbers: Sequence[int]) -> bool:
    """Return whether problems with these numbers belong to the test split, which the bundled model never saw."""
    return zlib.crc32(",".join(map(str, sorted(numbers))).encode()) % 10 == 0


def held_out(seed: int = 0) -> Iterator[CountdownProblem]:
    """Yield unique problems of the test split endlessly: numbers uniform in 1..25, a target uniform among the targets
    10..100 that are reachable with intermediates of 1..127."""
    rng = random.Random(seed)
    seen: set[CountdownProblem] = set()
    while True:
        numbers = tuple(rng.randint(*NUMBERS) for _ in range(4))
        if not is_held_out(numbers):
            continue
        targets = sorted(target for target in _reach(tuple(sorted(numbers))) if TARGETS[0] <= target <= TARGETS[1])
        if not targets:
            continue
        target = rng.choice(targets)
        key = CountdownProblem(tuple(sorted(numbers)), target)
        if key not in seen:
            seen.add(key)
            yield CountdownProblem(numbers, target)


def draw(count: int, seed: int = 0) -> list[CountdownProblem]:
    """Return `count` different problems of the test split."""
    problems = held_out(seed)
    return [next(problems) for _ in range(count)]


def _reach(numbers: tuple[int, ...]) -> set[int]:
    """Return all values that use every number once. Exhaustive: about 3,000 expressions for four numbers."""
    if len(numbers) == 1:
        return set(numbers)
    reached: set[int] = set()
    seen: set[tuple[int, ...]] = set()
    for i in range(len(numbers)):
        for j in range(i):
            high, low = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
            rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
            for value in _values(high, low):
                left = tuple(sorted((*rest, value)))
                if left not in seen:
                    seen.add(left)
                    reached |= _reach(left)
    return reached


def _values(high: int, low: int) -> list[int]:
    values = [high + low, high - low, high * low]
    if low > 1 and high % low == 0:
        values.append(high // low)
    return [value for value in values if 1 <= value <= LIMIT]


def is_right(problem: CountdownProblem, answer: object) -> bool:
    """Return whether an answer (`["11-7=4", …]`) has exact steps that use each number once and reach the target."""
    if not isinstance(answer, list) or len(answer) != len(problem.numbers) - 1:
        return False
    left = list(problem.numbers)
    value = None
    for step in answer:
        parts = _STEP.fullmatch(step) if isinstance(step, str) else None
        if parts is None:
            return False
        a, op, b, value = int(parts[1]), parts[2], int(parts[3]), int(parts[4])
        for number in (a, b):
            if number not in left:
                return False
            left.remove(number)
        exact = {"+": a + b == value, "-": a - b == value, "*": a * b == value, "/": b != 0 and b * value == a}
        if not exact[op]:
            return False
        left.append(value)
    return left == [problem.target]
