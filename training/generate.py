"""Training traces of the five modes, drawn on line from a seeded generator, each token with its loss
weight.

The teacher decides here: which candidates a parent spawns, how often a round fails, which child is shown.
Weight 0 means "not written by the model" (prompts, joins) or "not worth imitating" (rounds made to fail on
purpose). The grammar is in FORMAT.md; `check.py` verifies it independently. This file does not know about
tensors.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from .task import Leaf, Problem, Step, draw_problem, is_test, leaves, steps
from .vocab import ID, TARGET_BASE

SERIAL_TOKENS = 512  # the whole context of the serial mode
SERIAL_WIDTHS = (2, 3, 3, 4, 4, 5, 6, 8)  # more than four branches seldom fit
MAX_ROUNDS = 3
MAX_WIDTH = 8
HIT_WEIGHT = 4.0  # noticing the target is rare and decides everything
COPY_WEIGHT = 3.0  # a final answer is copied from far back, and one slip loses the problem
SOLVING_SHARE = 0.7  # share of the solving candidates that the teacher of a parent knows of
SOLVING_BOOST = 6.0  # how much likelier a serial trace tries a candidate that leads to a solution
NEAR_WEIGHT, NEAR = 3.0, 4  # verdicts on values this close to the target, so that a near miss is no hit
ANY_TARGET = 0.12  # share of problems whose target need not be reachable
FORCED_FAILURE = 0.5  # share of parent traces whose first rounds are made to fail

# Share of examples by mode; serial traces are long and direct ones short, so shares of tokens differ much.
MIXTURE = {"fork": 0.35, "child": 0.17, "serial": 0.15, "parent": 0.24, "direct": 0.09}

_OP = {op: ID[op] for op in "+-*/"}
_EQ, _SEMI, _BAR = ID["="], ID[";"], ID["|"]
_GO, _SPAWN, _WAIT, _JOIN = ID["<go>"], ID["<spawn>"], ID["<wait>"], ID["<join>"]
_HIT, _NONE, _END, _TRY = ID["<hit>"], ID["<none>"], ID["<end>"], ID["<try>"]
_LO, _HI = ID["<lo>"], ID["<hi>"]


class Trace(NamedTuple):
    """Token ids and, for each, the loss weight of predicting it."""

    ids: list[int]
    weights: list[float]

    def add(self, ids: Sequence[int], weight: float) -> None:
        """Append ids that all have one weight."""
        self.ids.extend(ids)
        self.weights.extend([weight] * len(ids))


def _step(step: Step | Leaf) -> list[int]:
    return [step.a, _OP[step.op], step.b, _EQ, step.c]


def _joined(done: Sequence[Step | Leaf]) -> list[int]:
    ids: list[int] = []
    for i, step in enumerate(done):
        ids += ([_SEMI] if i else []) + _step(step)
    return ids


def child_prompt(numbers: Sequence[int], target: int) -> list[int]:
    """`<child> T a b c <go>`; the numbers in descending order."""
    return [ID["<child>"], TARGET_BASE + target, *sorted(numbers, reverse=True), _GO]


def problem_prompt(mode: str, numbers: Sequence[int], target: int, k: int | None = None) -> list[int]:
    """`<mode> [k] T a b c d <go>`; the numbers in descending order."""
    width = [] if k is None else [k]
    return [ID[f"<{mode}>"], *width, TARGET_BASE + target, *sorted(numbers, reverse=True), _GO]


def add_search(trace: Trace, numbers: Sequence[int], target: int) -> tuple[Step, Leaf] | None:
    """Append the exhaustive search on three numbers; stops right after the verdict `<hit>`, and records what
    it found.
    """
    first = True
    for step in steps(numbers):
        z = step.rest[0]
        trace.add([*([] if first else [_SEMI]), *_step(step), _BAR, z], 1.0)
        first = False
        for leaf in leaves(step.c, z):
            trace.add([_OP[leaf.op], leaf.c], 1.0)
            if leaf.c == target:
                trace.add([_HIT], HIT_WEIGHT)
                return step, leaf
            near = abs(leaf.c - target) <= NEAR
            trace.add([_LO if leaf.c < target else _HI], NEAR_WEIGHT if near else 1.0)
    return None


def add_child(trace: Trace, numbers: Sequence[int], target: int) -> None:
    """Append what a child writes after its `<go>`."""
    found = add_search(trace, numbers, target)
    if found is None:
        trace.add([_NONE, _END], 1.0)
    else:
        trace.add([*_joined(found), _END], COPY_WEIGHT)


def _pick(rng: random.Random, open_: list[int], problem: Problem, k: int, boost: float) -> list[int]:
    """k of the open candidates, without replacement, those that lead to a solution `boost` times likelier;
    sorted.
    """

    def key(i: int) -> float:
        weight = boost if problem.solutions[i] is not None else 1.0
        return rng.expovariate(1.0) / weight

    return sorted(sorted(open_, key=key)[:k])


def _guesses(k: int) -> int:
    """How many items of a round are guesses; the others come in order."""
    return max(1, k // 4)


def _pick_round(rng: random.Random, open_: list[int], problem: Problem, k: int) -> list[int]:
    """A round of a parent: a few guesses that lead to a solution, the rest the first candidates still open.

    Going through most of them in order makes repeats and dead ends rare and lets three rounds of eight
    cover everything; the guesses are what the model can learn about promising steps.
    """
    good = [i for i in open_ if problem.solutions[i] is not None and rng.random() < SOLVING_SHARE]
    chosen = set(rng.sample(good, min(len(good), _guesses(k))))
    chosen.update([i for i in open_ if i not in chosen][: k - len(chosen)])
    return sorted(chosen)


def _pick_failing(rng: random.Random, failing: list[int], k: int) -> list[int]:
    """A round in which every child fails, of the same shape: the first open ones and some guesses further
    on.
    """
    guesses = rng.randint(0, _guesses(k))
    first, later = failing[: k - guesses], failing[k - guesses :]
    return sorted(first + rng.sample(later, min(guesses, len(later))))


def _add_round(trace: Trace, problem: Problem, chosen: list[int], weight: float) -> None:
    trace.add([_SPAWN], 1.0)
    for n, i in enumerate(chosen):
        step = problem.candidates[i]
        trace.add([*([_SEMI] if n else []), *_step(step), _BAR, *step.rest], weight)
    trace.add([_WAIT], 1.0)


def join_block(results: Sequence[Sequence[Step | Leaf] | None]) -> list[int]:
    """What the orchestrator writes after `<wait>`: one entry a child, in order of spawning."""
    ids = [_JOIN]
    for i, result in enumerate(results):
        ids += [_BAR] if i else []
        ids += [_NONE] if result is None else [_HIT, *_joined(result)]
    return [*ids, _GO]


def _solution(problem: Problem, i: int) -> list[Step | Leaf] | None:
    below = problem.solutions[i]
    return None if below is None else [problem.candidates[i], *below]


def _draw_width(rng: random.Random) -> int:
    return MAX_WIDTH if rng.random() < 0.3 else rng.randint(2, MAX_WIDTH)


def parent_trace(rng: random.Random, problem: Problem, k: int, fork: bool) -> Trace:
    """A parent's whole trace, or with `fork` its context up to a `<wait>` continued by one of that round's
    children.
    """
    trace = Trace([], [])
    trace.add(problem_prompt("parent", problem.numbers, problem.target, k), 0.0)
    open_ = list(range(len(problem.candidates)))
    failing = rng.choice((1, 1, 2, 3)) if rng.random() < FORCED_FAILURE else 0
    fork_round = rng.choice((1, 1, 2, 3)) if fork else 0
    for number in range(1, MAX_ROUNDS + 1):
        pool = [i for i in open_ if problem.solutions[i] is None] if number <= failing else open_
        forced = number <= failing and len(pool) >= min(k, len(open_))
        chosen = _pick_failing(rng, pool, k) if forced else _pick_round(rng, open_, problem, k)
        open_ = [i for i in open_ if i not in chosen]
        # A round that was made to fail shows a poor choice: learn to continue after it, not to make it.
        _add_round(trace, problem, chosen, 0.0 if forced else 1.0)
        hits = [i for i in chosen if problem.solutions[i] is not None]
        if fork and (number in (fork_round, MAX_ROUNDS) or hits or not open_):
            shown = rng.choice(hits) if hits and rng.random() < 0.6 else rng.choice(chosen)
            numbers = problem.candidates[shown].numbers()
            trace.add(child_prompt(numbers, problem.target), 0.0)
            add_child(trace, numbers, problem.target)
            return trace
        trace.add(join_block([_solution(problem, i) for i in chosen]), 0.0)
        if hits:
            answer = _solution(problem, hits[0]) or []
            trace.add([_HIT, *_joined(answer), _END], COPY_WEIGHT)
            return trace
        if not open_:
            break
    trace.add([_NONE, _END], 1.0)
    return trace


def child_trace(rng: random.Random, problem: Problem) -> Trace:
    """A child from its own line; about half of those shown find the target."""
    hits = [i for i, below in enumerate(problem.solutions) if below is not None]
    shown = rng.choice(hits) if hits and rng.random() < 0.5 else rng.randrange(len(problem.candidates))
    numbers = problem.candidates[shown].numbers()
    trace = Trace([], [])
    trace.add(child_prompt(numbers, problem.target), 0.0)
    add_child(trace, numbers, problem.target)
    return trace


def serial_trace(rng: random.Random, problem: Problem, k: int) -> Trace:
    """At most k branches in canonical order (so that none comes twice), good ones likelier; cut at
    SERIAL_TOKENS.
    """
    trace = Trace([], [])
    trace.add(problem_prompt("serial", problem.numbers, problem.target, k), 0.0)
    for i in _pick(rng, list(range(len(problem.candidates))), problem, k, SOLVING_BOOST):
        step = problem.candidates[i]
        trace.add([_TRY, *_step(step), _BAR, *step.numbers(), _GO], 1.0)
        found = add_search(trace, step.numbers(), problem.target)
        if found is not None:
            trace.add([*_joined([step, *found]), _END], COPY_WEIGHT)
            break
        if len(trace.ids) >= SERIAL_TOKENS:
            break
    else:
        trace.add([_NONE, _END], 1.0)
    return Trace(trace.ids[:SERIAL_TOKENS], trace.weights[:SERIAL_TOKENS])


def direct_trace(rng: random.Random, problem: Problem) -> Trace | None:
    """The answer with no search; None for a problem without one."""
    hits = [i for i, below in enumerate(problem.solutions) if below is not None]
    if not hits:
        return None
    trace = Trace([], [])
    trace.add(problem_prompt("direct", problem.numbers, problem.target), 0.0)
    trace.add([*_joined(_solution(problem, rng.choice(hits)) or []), _END], 1.0)
    return trace


def draw_trace(rng: random.Random) -> Trace:
    """One training trace of a mode drawn from MIXTURE, always from the training split."""
    while True:
        mode = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
        problem = draw_problem(rng, test=False, any_target=ANY_TARGET)
        if is_test(problem.numbers):
            raise AssertionError(f"test problem drawn for training: {problem.numbers}")
        trace: Trace | None
        if mode == "child":
            trace = child_trace(rng, problem)
        elif mode == "serial":
            trace = serial_trace(rng, problem, rng.choice(SERIAL_WIDTHS))
        elif mode == "direct":
            trace = direct_trace(rng, problem)
        else:
            trace = parent_trace(rng, problem, _draw_width(rng), fork=mode == "fork")
        if trace is not None:
            return trace
