"""The scripted proposer and the noisy scorer of the study `search`.

With probability `RIGHT` the script makes a move that keeps the puzzle solvable (if there is one), else any exact move.
The scorer is exact solvability with noise of a stated AUROC (area under the ROC curve). So the figures say how the
searches spend tokens, not how well any model reasons.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from random import Random
from statistics import NormalDist
from typing import NamedTuple, cast

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.flow import Context
from plait.core.interfaces import Planner
from plait.core.ops import ModelCall, Text
from plait.core.result import Result, Usage
from plait.core.search import Scorer, SearchNode
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import load
from plait.planners.threads.threads.dialects.countdown import CountdownDialect
from plait_bench.tasks.countdown import Countdown, moves, remaining, solvable

__all__ = ["RIGHT", "Noisy", "Script", "Shown", "read", "steps_of", "threaded"]

RIGHT = 0.35
"""Probability that the proposer looks for a move that keeps the puzzle solvable."""
STEP = 9.1
"""Mean tokens of a step."""
LAST = 512
"""Tokens above its share that a thread may write, to end its last line."""
RESTATED = 5
"""Tokens of a step that a parent of threads writes again, in its answer."""

Move = tuple[int, str, int, int]

_PUZZLE = re.compile(r"T(\d+) ([\d ]+) <go>((?:\s*\d+[-+*/]\d+=\d+;)*)(.*)", re.DOTALL)
_STEP = re.compile(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)")
_WANTED = re.compile(r"Write up to (\d+) different next steps")
_LESSON = re.compile(r"^- Not again: (.*)$", re.MULTILINE)
_PARENT = re.compile(r"<parent> (\d+) T")


class Noisy(Scorer):
    """Exact solvability as a normal variable: mean ±d'/2 by solvability, standard deviation 1, `d' = sqrt(2) · z(A)`.
    The noise is a hash of the state, so that a state has one score. The score is the variable's normal CDF."""

    auroc: float = 0.9
    seed: int = 0

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the noisy score of a state; exact (0 or 1) at AUROC 1."""
        task = cast("Countdown", ctx.brief.task)
        return self.of(task, node.key, task.value(node.text) > 0.5)

    def of(self, task: Countdown, key: str, good: bool) -> float:
        """Return the score of the state of a key that is solvable, or not."""
        if self.auroc >= 1.0:
            return float(good)
        normal = NormalDist()
        distance = 2**0.5 * normal.inv_cdf(self.auroc)
        digest = hashlib.blake2b(f"{self.seed}/{task.text}/{key}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest) + 0.5) / 2**64
        return normal.cdf(normal.inv_cdf(uniform) + (distance if good else -distance) / 2)


class Script:
    """The proposer. It writes single steps, lists of steps, reflections, and threads with their parent.

    A reflection names the failed line; a step that would make that line again is not written. A thread writes whole
    lines by the same odds until its tokens are spent, and claims the line whose end `scorer` scores highest; its parent
    answers with the best claim by the same scores. So threads know no more than the other methods do.
    """

    def __init__(self, task: Countdown, scorer: Noisy) -> None:
        self._task, self._scorer = task, scorer
        self.hit = False
        """Whether a line of a thread has reached the target."""

    def __call__(self, job: Job, random: Random) -> Result:
        """Return its reply to a prompt."""
        if not isinstance(job.op, ModelCall):
            return Result()
        prompt = "".join(part.text for part in job.op.parts if isinstance(part, Text))
        if "<child>" in prompt:
            return self._thread(prompt.rpartition("<child>")[2], job.op.sampling.max_tokens - LAST, random)
        if "<join>" in prompt:
            return self._best(prompt.rpartition("<join>")[2])
        numbers, _, steps, rest = read(prompt)
        parent, wanted = _PARENT.search(prompt), _WANTED.search(rest)
        if parent is not None:
            return self._spawned(numbers, int(parent[1]), random)
        if "This attempt failed" in rest:
            return Result(
                value="Not again: " + " > ".join(map(_spaced, steps)), usage=Usage(completion=12 + 4 * len(steps))
            )
        left = remaining(numbers, steps)
        assert left is not None, prompt
        if len(left) == 1:
            return Result(value="", usage=Usage(completion=1))
        if wanted is not None:
            drawn = self._several(left, int(wanted[1]), random)
            said, tokens = "\n".join(_step(each) for each in drawn), sum(_length(random) for _ in drawn)
        else:
            failed = [steps_of(line) for line in _LESSON.findall(rest)]
            known = {line[-1] for line in failed if line[:-1] == steps}
            said, tokens = _step(self._move(left, random, known)), _length(random)
        return Result(value=said, usage=Usage(completion=tokens))

    def _move(self, left: tuple[int, ...], random: Random, known: set[Move] | None = None) -> Move:
        every, good = _moves(left, self._task.target)
        if known:
            every = [each for each in every if each not in known] or every
            good = [each for each in good if each not in known]
        return random.choice(good) if good and random.random() < RIGHT else random.choice(every)

    def _several(self, left: tuple[int, ...], wanted: int, random: Random) -> list[Move]:
        """Return different moves, each drawn by the odds of one."""
        drawn: dict[Move, None] = {}
        for _ in range(min(wanted, len(moves(left)))):
            drawn[self._move(left, random, set(drawn))] = None
        return list(drawn)

    def _spawned(self, numbers: tuple[int, ...], wanted: int, random: Random) -> Result:
        items: list[str] = []
        drawn = self._several(numbers, wanted, random)
        for a, op, b, c in drawn:
            rest = list(numbers)
            rest.remove(a)
            rest.remove(b)
            items.append(f"{a} {op} {b} = {c} | {' '.join(map(str, rest))}")
        tokens = sum(_length(random) for _ in drawn)
        return Result(value=f"<spawn> {' ; '.join(items)} <wait>", usage=Usage(completion=tokens), finish="stop")

    def _thread(self, prompt: str, most: int, random: Random) -> Result:
        numbers = read(prompt).numbers
        best: tuple[float, list[Move]] = (-1.0, [])
        spent = 0
        while not spent or spent + STEP * (len(numbers) - 1) / 2 <= most:  # so that it ends about there
            left, line = numbers, list[Move]()
            while len(left) > 1:
                line.append(self._move(left, random))
                left = cast("tuple[int, ...]", remaining(left, line[-1:]))
                spent += _length(random)
            end = line[-1][-1]
            self.hit = self.hit or end == self._task.target
            best = max(best, (self._score(end), line), key=lambda each: each[0])
        said = " ; ".join(_spaced(each) for each in best[1])
        return Result(value=f"<hit> {said} <end>", usage=Usage(completion=spent), finish="stop")

    def _best(self, block: str) -> Result:
        claims = [steps_of(each) for each in block.split("|") if "<hit>" in each]
        won = max(claims, key=lambda each: self._score(each[-1][-1]), default=[])
        said = f"<hit> {' ; '.join(map(_spaced, won))} <end>" if won else "<none> <end>"
        return Result(value=said, usage=Usage(completion=2 + RESTATED * len(won)), finish="stop")

    def _score(self, end: int) -> float:
        target = self._task.target
        return self._scorer.of(self._task, f"{end} -> {target}", end == target)


class Shown(NamedTuple):
    """What a prompt shows of a puzzle."""

    numbers: tuple[int, ...]
    target: int
    steps: list[Move]
    rest: str
    """What follows the steps."""


def read(prompt: str) -> Shown:
    """Return the state that a prompt shows."""
    shown = _PUZZLE.search(prompt)
    assert shown is not None, prompt
    return Shown(tuple(int(word) for word in shown[2].split()), int(shown[1]), steps_of(shown[3]), shown[4])


def steps_of(text: str) -> list[Move]:
    """Return the operations in a text, spaced or not."""
    return [(int(a), op, int(b), int(c)) for a, op, b, c in _STEP.findall(text)]


@lru_cache(maxsize=1 << 15)
def _moves(left: tuple[int, ...], target: int) -> tuple[list[Move], list[Move]]:
    """Return every move, and those that keep the target in reach."""
    every = moves(left)
    return every, [each for each in every if solvable(cast("tuple[int, ...]", remaining(left, (each,))), target)]


def _step(move: Move) -> str:
    return "{}{}{}={};".format(*move)


def _spaced(move: Move) -> str:
    return "{} {} {} = {}".format(*move)


def _length(random: Random) -> int:
    return 4 + min(60, int(random.lognormvariate(1.6, 0.5)))


class _Dialect(CountdownDialect):
    """That of the bundled model for any exact step on any numbers; claims are not verified."""

    def begin(self, fields: dict[str, str], prompt: str, notes: str) -> str | None:
        numbers, target, *_ = read(prompt)
        left = remaining(numbers, [(int(fields["a"]), fields["op"], int(fields["b"]), int(fields["c"]))])
        return None if left is None else f" <child> T{target} {' '.join(map(str, left))} <go>"


def threaded(size: int, nodes: int) -> Planner:
    """Return the planner `threads` with the tokens of a number of nodes: up to 8 different first steps, a thread behind
    each, and the parent's answer. No claim is verified, and no thread ends the others."""
    width = min(8, nodes // size)
    each = int(((nodes - width) * STEP - 2 - RESTATED * (size - 1)) / width)
    table = load("countdown").model_dump()
    item = r"(?P<step>(?P<a>\d+) (?P<op>[-+*/]) (?P<b>\d+) = (?P<c>\d+)) \| (?P<rest>\d+(?: \d+)*)"
    dialect = _Dialect.model_validate({**table, "item": item, "join": {**table["join"], "check": False}, "rounds": 1})
    return Threads(
        dialect=dialect,
        n=width,
        answer=CallConfig(max_tokens=1024),
        part=CallConfig(max_tokens=each + LAST),
        early=False,
        stop_on_verified=False,
        fork=False,
    )
