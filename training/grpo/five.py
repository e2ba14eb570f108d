"""Five-number Countdown: the problems, a solver, and the supervised traces that the policy starts from.

A parent lists first steps on five numbers, each with the three numbers left beside its result; a child gets the four
numbers after such a step and *guesses* the other three steps, with no search:

    <parent> 8 T36 14 10 8 3 2 <go> <spawn> 14 * 3 = 42 | 10 8 2 ; … <wait> <join> <none> | … <go> …
    <child> T36 42 10 8 2 <go> <hit> 42 + 2 = 44 ; 44 - 8 = 36 ; … <end>

Legal steps, their order and the split between training and testing are those of `training.task`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from ..generate import Trace, join_block, problem_prompt
from ..task import (
    MAX_NUMBER,
    MAX_TARGET,
    MIN_NUMBER,
    MIN_TARGET,
    Leaf,
    Step,
    candidates,
    is_test,
    leaves,
    steps,
)
from ..vocab import ID, TARGET_BASE

COUNT = 5
WIDTH = 8
GUESSES = 2
"""Items of a round that the teacher picks because they lead to a solution; the others come in canonical order."""
PARENT_SHARE = 0.2
ROUNDS = 2
FOUND = 0.3
"""Share of a trace's rounds in which the threads find what there is; in the others every thread fails."""

Solution = tuple[Step | Leaf, ...]
_OP = {op: ID[op] for op in "+-*/"}


@lru_cache(maxsize=1 << 15)
def _three(numbers: tuple[int, ...]) -> dict[int, tuple[Step, Leaf]]:
    """Targets that three numbers reach, each with its first solution."""
    found: dict[int, tuple[Step, Leaf]] = {}
    for step in steps(numbers):
        for leaf in leaves(step.c, step.rest[0]):
            found.setdefault(leaf.c, (step, leaf))
    return found


def solve(numbers: tuple[int, ...], target: int, rng: random.Random | None = None) -> Solution | None:
    """The steps from three or more numbers (descending) to the target, or None; with `rng` a random one of the
    solutions that differ in all but the last two steps, else the first."""
    if len(numbers) == 3:
        return _three(numbers).get(target)
    firsts = candidates(numbers)
    if rng is not None:
        rng.shuffle(firsts)
    for first in firsts:
        below = solve(first.numbers(), target, rng)
        if below is not None:
            return (first, *below)
    return None


def draw_numbers(rng: random.Random, test: bool) -> tuple[int, ...]:
    """Five random numbers of one split, in descending order."""
    while True:
        drawn = tuple(sorted((rng.randint(MIN_NUMBER, MAX_NUMBER) for _ in range(COUNT)), reverse=True))
        if is_test(drawn) == test:
            return drawn


def _end(rng: random.Random, numbers: tuple[int, ...]) -> int:
    """The number that random legal steps end in."""
    while len(numbers) > 2:
        numbers = rng.choice(candidates(numbers)).numbers()
    return rng.choice(list(leaves(*numbers))).c


def draw_problem(rng: random.Random, test: bool) -> tuple[tuple[int, ...], int]:
    """Five numbers and a target that some random play on them reaches."""
    while True:
        numbers = draw_numbers(rng, test)
        target = _end(rng, numbers)
        if MIN_TARGET <= target <= MAX_TARGET:
            return numbers, target


def held_out(count: int, seed: int) -> list[tuple[tuple[int, ...], int]]:
    """Distinct problems of the test split."""
    rng, found = random.Random(f"five/{seed}"), {}
    while len(found) < count:
        found[draw_problem(rng, test=True)] = None
    return list(found)


def child_prompt(numbers: Sequence[int], target: int) -> list[int]:
    """`<child> T a b c d <go>`."""
    return [ID["<child>"], TARGET_BASE + target, *sorted(numbers, reverse=True), ID["<go>"]]


def parent_prompt(numbers: Sequence[int], target: int, width: int = WIDTH) -> list[int]:
    """`<parent> k T a b c d e <go>`."""
    return problem_prompt("parent", numbers, target, width)


def _ids(solution: Sequence[Step | Leaf]) -> list[int]:
    out: list[int] = []
    for i, step in enumerate(solution):
        out += ([ID[";"]] if i else []) + [step.a, _OP[step.op], step.b, ID["="], step.c]
    return out


def child_trace(rng: random.Random) -> Trace:
    """A guess that is right: the four numbers after a random first step, and a target that they reach."""
    while True:
        numbers = rng.choice(candidates(draw_numbers(rng, test=False))).numbers()
        target = _end(rng, numbers)
        solution = solve(numbers, target, rng) if MIN_TARGET <= target <= MAX_TARGET else None
        if solution is not None:
            break
    trace = Trace([], [])
    trace.add(child_prompt(numbers, target), 0.0)
    trace.add([ID["<hit>"], *_ids(solution), ID["<end>"]], 1.0)
    return trace


def _round(rng: random.Random, open_: list[Step], target: int, width: int) -> list[tuple[Step, Solution | None]]:
    """A few items that lead to a solution, the rest the first that are still open; in canonical order."""
    chosen: dict[Step, Solution | None] = {}
    for step in rng.sample(open_, min(len(open_), 3 * GUESSES)):
        below = solve(step.numbers(), target)
        if below is not None and len(chosen) < GUESSES:
            chosen[step] = below
    for step in open_:
        if len(chosen) >= width:
            break
        chosen.setdefault(step, None)
    return [(step, chosen[step]) for step in open_ if step in chosen]


def parent_trace(rng: random.Random) -> Trace:
    """A parent's trace of at most two rounds."""
    numbers, target = draw_problem(rng, test=False)
    trace = Trace([], [])
    trace.add(parent_prompt(numbers, target), 0.0)
    open_ = candidates(numbers)
    for _ in range(ROUNDS):
        items = _round(rng, open_, target, WIDTH)
        trace.add([ID["<spawn>"]], 1.0)
        for n, (step, _below) in enumerate(items):
            trace.add([*([ID[";"]] if n else []), *_ids([step]), ID["|"], *step.rest], 1.0)
        trace.add([ID["<wait>"]], 1.0)
        found = rng.random() < FOUND
        results = [(step, *below) if found and below else None for step, below in items]
        trace.add(join_block(results), 0.0)
        first = next((each for each in results if each), None)
        if first is not None:
            trace.add([ID["<hit>"], *_ids(first), ID["<end>"]], 1.0)
            return trace
        tried = {step for step, _ in items}
        open_ = [step for step in open_ if step not in tried]
        if not open_:
            break
    trace.add([ID["<none>"], ID["<end>"]], 1.0)
    return trace


def draw_trace(rng: random.Random) -> Trace:
    """A supervised trace of a parent or a child, of the training split."""
    return parent_trace(rng) if rng.random() < PARENT_SHARE else child_trace(rng)
