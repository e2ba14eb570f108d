"""Traces of three modes, drawn on line from a seeded generator.

    <value> T36 14 10 8 <go> <yes>                     can the target be reached from these numbers? (two to four)
    <step> T36 14 10 8 3 <go> 14 - 3 = 11 | 11 10 8 <end>     one operation, and all the numbers then
    <sum> 2 14 - 3 * 4 + 9 <go> 3 * 4 = 12 ; 14 - 12 = 2 ; 2 + 9 = 11 <hit> 11 <end>     level 2 of 1..4

A sum's teacher errs on purpose, so that votes have something to outvote: some of its traces are careful (every step is
written; a step is off at times), the others hasty (only the answer, off more often, at times by working from left to
right in disregard of `*` before `+`). The text does not show which; a sampled trace shows it in its length and its
confidence.
"""

from __future__ import annotations

import random
import zlib
from typing import NamedTuple

from ..generate import Trace
from ..task import MAX_TARGET, MAX_VALUE, MIN_TARGET, candidates, draw_numbers, leaves, reach, steps
from .vocab import ID, encode

MIXTURE = {"value": 0.55, "step": 0.25, "sum": 0.2}
LEVELS = (1, 2, 3, 4)


class Skill(NamedTuple):
    """How often a level's traces are hasty, and how often they err."""

    hasty: float
    slip: float
    """Of one step of a careful trace."""
    wrong: float
    """Of the answer of a hasty trace."""


SKILLS = {1: Skill(0.6, 0.25, 0.65), 2: Skill(0.45, 0.16, 0.55), 3: Skill(0.3, 0.08, 0.45), 4: Skill(0.15, 0.03, 0.3)}
LEFT_TO_RIGHT = 0.5
"""Share of a hasty trace's errors that disregard `*` before `+`, where that changes the answer."""
ANY_TARGET = 0.3
"""Share of states whose problem need not be solvable."""


def solvable(numbers: tuple[int, ...], target: int) -> bool:
    """Whether the target can be reached from one to four numbers in descending order, all of them used."""
    match len(numbers):
        case 1:
            return numbers[0] == target
        case 2:
            return any(leaf.c == target for leaf in leaves(*numbers))
        case 3:
            return target in reach(numbers)
        case _:
            return any(target in reach(step.numbers()) for step in candidates(numbers))


def after(numbers: tuple[int, ...]) -> list[tuple[tuple[int, str, int, int], tuple[int, ...]]]:
    """Every legal step on two to four numbers: (a, op, b, c), and all the numbers then, descending."""
    if len(numbers) == 2:
        return [((leaf.a, leaf.op, leaf.b, leaf.c), (leaf.c,)) for leaf in leaves(*numbers)]
    return [((step.a, step.op, step.b, step.c), step.numbers()) for step in steps(numbers)]


def state(rng: random.Random, test: bool = False) -> tuple[tuple[int, ...], int]:
    """A partial state: the numbers after none to two random steps of a problem, and its target: where a random line of
    steps ends, or at times any number."""
    while True:
        start = numbers = draw_numbers(rng, test)
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            numbers = rng.choice(after(numbers))[1]
        if rng.random() < ANY_TARGET:
            return numbers, rng.randint(MIN_TARGET, MAX_TARGET)
        walk = numbers if rng.random() < 0.3 else start
        while len(walk) > 1 and (options := after(walk)):
            walk = rng.choice(options)[1]
        if len(walk) == 1 and MIN_TARGET <= walk[0] <= MAX_TARGET:
            return numbers, walk[0]


def prompt(mode: str, numbers: tuple[int, ...], target: int) -> str:
    """`<mode> T36 14 10 8 <go>`."""
    return f"<{mode}> T{target} {' '.join(map(str, numbers))} <go>"


def value_trace(rng: random.Random) -> Trace:
    """Whether a state can be solved: one word."""
    numbers, target = state(rng)
    trace = Trace([], [])
    trace.add(encode(prompt("value", numbers, target)), 0.0)
    trace.add([ID["<yes>" if solvable(numbers, target) else "<no>"]], 1.0)
    return trace


def step_trace(rng: random.Random) -> Trace:
    """One of the steps after which the target can still be reached; without one, any step."""
    while True:
        numbers, target = state(rng)
        options = after(numbers)
        good = [option for option in options if solvable(option[1], target)]
        if options and (good or rng.random() < 0.15):
            break
    (a, op, b, c), then = rng.choice(good or options)
    trace = Trace([], [])
    trace.add(encode(prompt("step", numbers, target)), 0.0)
    trace.add(encode(f"{a} {op} {b} = {c} | {' '.join(map(str, then))} <end>"), 1.0)
    return trace


# -- sums ------------------------------------------------------------------------------------------------------------

Term = tuple[int, str, int, int]


def draw_sum(rng: random.Random) -> list[str]:
    """The words of a sum of three to six numbers, `14 - 3 * 4 + 9`, every value on its way 0..127."""
    while True:
        words = [str(rng.randint(1, 25))]
        for _ in range(rng.randint(2, 5)):
            op = rng.choice("++--*")
            words += [op, str(rng.randint(2, 9) if op == "*" else rng.randint(1, 25))]
        if worked(words) is not None:
            return words


def worked(words: list[str], by_rank: bool = True) -> list[Term] | None:
    """The operations of a sum in order, `*` first; None if a value leaves 0..127. `by_rank` off: from left to right."""
    left = list(words)
    out: list[Term] = []
    while len(left) > 1:
        at = next((i for i, word in enumerate(left) if word == "*"), 1) if by_rank else 1
        a, op, b = int(left[at - 1]), left[at], int(left[at + 1])
        c = {"+": a + b, "-": a - b, "*": a * b}[op]
        if not 0 <= c <= MAX_VALUE:
            return None
        out.append((a, op, b, c))
        left[at - 1 : at + 2] = [str(c)]
    return out


def is_test_sum(words: list[str]) -> bool:
    """Whether a sum belongs to the test split, one in ten."""
    return zlib.crc32(" ".join(words).encode()) % 10 == 0


def _off(rng: random.Random, value: int) -> int:
    """A near miss."""
    while True:
        wrong = value + rng.choice((-10, -2, -1, -1, 1, 1, 2, 10))
        if 0 <= wrong <= MAX_VALUE:
            return wrong


def sum_trace(rng: random.Random) -> Trace:
    """A sum as a level's teacher works it out."""
    while True:
        words = draw_sum(rng)
        if not is_test_sum(words):
            break
    level = rng.choice(LEVELS)
    trace = Trace([], [])
    trace.add(encode(f"<sum> {level} {' '.join(words)} <go>"), 0.0)
    trace.add(encode(attempt(rng, words, SKILLS[level])), 1.0)
    return trace


def attempt(rng: random.Random, words: list[str], skill: Skill) -> str:
    """What a teacher of this skill writes for a sum."""
    terms = worked(words)
    assert terms is not None
    if rng.random() < skill.hasty:
        value = terms[-1][3]
        if rng.random() < skill.wrong:
            left = worked(words, by_rank=False)
            trap = left is not None and left[-1][3] != value and rng.random() < LEFT_TO_RIGHT
            value = left[-1][3] if trap and left is not None else _off(rng, value)
        return f"<hit> {value} <end>"
    return _careful(rng, words, skill.slip)


def _careful(rng: random.Random, words: list[str], slip: float) -> str:
    """Step by step; after a slip the work continues with the wrong value, cut to the range."""
    left = list(words)
    lines: list[str] = []
    while len(left) > 1:
        at = next((i for i, word in enumerate(left) if word == "*"), 1)
        a, op, b = int(left[at - 1]), left[at], int(left[at + 1])
        c = {"+": a + b, "-": a - b, "*": a * b}[op]
        c = min(max(c, 0), MAX_VALUE)
        if rng.random() < slip:
            c = _off(rng, c)
        lines.append(f"{a} {op} {b} = {c}")
        left[at - 1 : at + 2] = [str(c)]
    return f"{' ; '.join(lines)} <hit> {left[0]} <end>"


_MAKERS = {"value": value_trace, "step": step_trace, "sum": sum_trace}


def draw_trace(rng: random.Random, mode: str | None = None) -> Trace:
    """One training trace of a mode drawn from MIXTURE, always from the training split."""
    return _MAKERS[mode or rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]](rng)
