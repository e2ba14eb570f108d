"""Countdown itself: the legal steps, the order in which they are listed, and which problems are for
testing.

Four numbers 1..25, all used once, target 10..100, exact + - * /, every intermediate in 1..127. A step
always has its larger number first, so each unordered pair and operation is one step. Dividing by 1 is left
out (it equals multiplying by 1). This file does not know about tokens or traces.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

OPERATIONS = "+-*/"
MAX_VALUE = 127
MIN_NUMBER, MAX_NUMBER = 1, 25
MIN_TARGET, MAX_TARGET = 10, 100
_PAIRS = {count: tuple(combinations(range(count), 2)) for count in (3, 4, 5)}


class Step(NamedTuple):
    """One step `a op b = c`, with the numbers left beside c (in descending order)."""

    a: int
    op: str
    b: int
    c: int
    rest: tuple[int, ...]

    def numbers(self) -> tuple[int, ...]:
        """All numbers after the step, in descending order."""
        return tuple(sorted((self.c, *self.rest), reverse=True))


class Leaf(NamedTuple):
    """A last step `a op b = c`, which leaves one number."""

    a: int
    op: str
    b: int
    c: int


def calculate(op: str, a: int, b: int) -> int | None:
    """`a op b` for a >= b, or None where the rules forbid it."""
    if op == "+":
        value = a + b
    elif op == "-":
        value = a - b
    elif op == "*":
        value = a * b
    else:
        if b < 2 or a % b:
            return None
        value = a // b
    return value if 1 <= value <= MAX_VALUE else None


def steps(numbers: Sequence[int]) -> Iterator[Step]:
    """Every legal step on three to five numbers given in descending order: pairs by place, operations in
    order. Equal numbers give the same step once.
    """
    seen: set[tuple[int, int]] = set()
    for i, j in _PAIRS[len(numbers)]:
        a, b = numbers[i], numbers[j]
        if (a, b) in seen:
            continue
        seen.add((a, b))
        rest = tuple(n for at, n in enumerate(numbers) if at not in (i, j))
        for op in OPERATIONS:
            c = calculate(op, a, b)
            if c is not None:
                yield Step(a, op, b, c, rest)


def candidates(numbers: Sequence[int]) -> list[Step]:
    """The first steps of a problem in canonical order."""
    return list(steps(numbers))


def leaves(c: int, z: int) -> Iterator[Leaf]:
    """Every legal last step on two numbers, operations in order."""
    a, b = (c, z) if c >= z else (z, c)
    for op in OPERATIONS:
        value = calculate(op, a, b)
        if value is not None:
            yield Leaf(a, op, b, value)


def reach(numbers: Sequence[int]) -> dict[int, tuple[Step, Leaf]]:
    """Targets that three numbers reach, each with the first solution in the order of enumeration."""
    found: dict[int, tuple[Step, Leaf]] = {}
    for step in steps(numbers):
        for leaf in leaves(step.c, step.rest[0]):
            found.setdefault(leaf.c, (step, leaf))
    return found


def is_test(numbers: Sequence[int]) -> bool:
    """Whether a multiset of four numbers belongs to the test split (one in ten), never to be trained on."""
    return zlib.crc32(",".join(map(str, sorted(numbers))).encode()) % 10 == 0


class Problem(NamedTuple):
    """Numbers (descending), target, and for each candidate first step its solution below, or None."""

    numbers: tuple[int, ...]
    target: int
    candidates: list[Step]
    solutions: list[tuple[Step, Leaf] | None]


def draw_numbers(rng: random.Random, test: bool) -> tuple[int, ...]:
    """Four random numbers of one split, in descending order."""
    while True:
        drawn = sorted((rng.randint(MIN_NUMBER, MAX_NUMBER) for _ in range(4)), reverse=True)
        if is_test(drawn) == test:
            return tuple(drawn)


def draw_problem(rng: random.Random, test: bool = False, any_target: float = 0.0) -> Problem:
    """A random problem: the target is uniform over the reachable ones, or with probability `any_target`
    over all.
    """
    while True:
        numbers = draw_numbers(rng, test)
        firsts = candidates(numbers)
        reached = [reach(step.numbers()) for step in firsts]
        if rng.random() < any_target:
            target = rng.randint(MIN_TARGET, MAX_TARGET)
        else:
            targets = sorted({t for found in reached for t in found if MIN_TARGET <= t <= MAX_TARGET})
            if not targets:
                continue
            target = rng.choice(targets)
        return Problem(numbers, target, firsts, [found.get(target) for found in reached])
