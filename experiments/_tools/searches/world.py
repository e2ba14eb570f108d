"""The world of the study `search`: puzzles, and one method on one of them in virtual time, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from plait.core.flow import Answerable, Context
from plait.core.interfaces import Planner
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.search import SearchNode
from plait.planners.search.tree import Tree
from plait.planners.search.tree.growth import Growth
from plait_bench.tasks.countdown import Countdown, solvable
from plait_research.simulation.latency import Host, Outcome as Sayer
from plait_research.simulation.simulator import simulate

from .script import Script

__all__ = ["SLOTS", "Measured", "Outcome", "outcome_of", "puzzles"]

SLOTS = 16
"""Of the one host, 50 tokens a second each."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One method on one puzzle."""

    right: bool
    covered: bool
    """Whether a right answer was among those found."""
    nodes: int
    tokens: int
    """Generated; cancelled ones included."""
    seconds: float
    """Virtual."""
    kv: float
    """Resident tokens (the unique ones of live paths) integrated over time, in token seconds; 0 without a tree."""


class Measured(Tree):
    """Keeps the growth of its last run."""

    merge: bool = True
    """Equal states are one node, as in the planner. Off for whole lines that are sampled on their own."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        growth = _Growth(self, ctx, question)
        _LAST[:] = [growth]
        return await growth.answer()


class _Growth(Growth):
    """Measures the resident tokens at each node's end."""

    def __init__(self, options: Measured, ctx: Context, question: str) -> None:
        super().__init__(options, ctx, ctx.brief.task.render(options.style))
        if not options.merge:
            self._states = _Apart()
        self._now = ctx.now
        self._measured = (0.0, 0)
        self.kv = 0.0

    def done(self, node: SearchNode) -> None:
        super().done(node)
        at, resident = self._measured
        now = self._now()
        self.kv += max(0.0, now - at) * resident
        self._measured = (now, self.tree.resident())


class _Apart(dict[str, SearchNode]):
    """Finds no state again."""

    def get(self, key: str, default: SearchNode | None = None) -> SearchNode | None:  # type: ignore[override]
        return None


_LAST: list[_Growth] = []


def puzzles(numbers: int, count: int, seed: int) -> list[str]:
    """Return solvable puzzles, all different."""
    random = Random(f"{numbers}/{seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        drawn = tuple(sorted((random.randint(1, 25) for _ in range(numbers)), reverse=True))
        target = random.randint(10, 100)
        if solvable(drawn, target):
            found[f"{' '.join(map(str, drawn))} -> {target}"] = None
    return list(found)


def outcome_of(task: Countdown, planner: Planner, say: Sayer, number: int) -> Outcome:
    """Run one method on one puzzle, on one host of 16 slots; `number` is the seed."""
    _LAST.clear()
    request = Request(
        text=task.text,
        task=Plugin(name="countdown", options={"count": task.count, "any_width": True}),
        seed=number,
    )
    done = simulate(
        request, planner=planner, hosts=[Host("host", slots=SLOTS, decode_rate=50.0)], outcome=say, seed=number
    )
    value = done.result.value if done.result is not None else None
    right = task.verify(task.extract(value) if isinstance(value, str) else value)
    if not _LAST:
        covered = right or (isinstance(say, Script) and say.hit)
        return Outcome(right, covered, 0, done.usage.completion, done.makespan, 0.0)
    tree = _LAST[0].tree
    answers: Sequence[object] = [node.answer for node in tree.nodes if node.outcome == "answer"]
    return Outcome(
        right,
        any(task.verify(each) for each in answers),  # type: ignore[arg-type]
        len(tree.nodes) - 1,
        done.usage.completion,
        done.makespan,
        _LAST[0].kv,
    )
