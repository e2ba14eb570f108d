"""What does waiting for whole depths cost a search on a real engine?

What waiting for whole depths costs a search on a real engine: `stride` against `rebase`, on the bundled model.

    python -m experiments search_barrier [--puzzles 4] [--rounds 8] [--seconds 500]

Both get the same children a depth, slots and scorer (of AUROC 0.9), and other seeds. Three kinds of steps on Countdown:

- `moves`: a step is one operation, all of about six tokens.
- `tries`: a step is a branch of the serial search; it ends at the next branch or at a hit, after 1 to 120 tokens.
- `tries, 4 at a time`: the same, with four puzzles in the engine at once.

The contenders take turns, in changing order. An engine step decodes a token of each request in flight, so engine steps
a node and requests a step do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from plait import AsyncOrchestrator
from plait.core.flow import Answerable, Context
from plait.core.ops import Plugin
from plait.planners.search.tree import Tree
from plait.planners.search.tree.growth import Growth
from plait.runtime.client.config import BUNDLED_MODEL
from plait.workers.engine import Engine
from plait_bench.countdown import CountdownProblem, draw
from plait_bench.tasks.countdown import Countdown

from .._tools.measure import Contender, interleave
from .._tools.searches.script import Noisy

__all__ = ["Figures", "Tries", "World", "main"]

WIDTH = 16
"""Children of a depth, and most nodes in flight."""
SEARCHES = ("stride", "rebase")


class Tries(Countdown):
    """Countdown by the serial search: a state is a text, and what is promising is a text with a hit in it or, of a
    puzzle that has a solution, one that is not over."""

    def state_key(self, partial: str) -> str | None:
        """Return none: a state is a text."""
        return None

    def complete(self, partial: str) -> bool:
        """Return whether a search has ended."""
        return "<hit>" in partial or "<none>" in partial

    def value(self, partial: str) -> float:
        """Return 1 for a hit, and for a search that continues."""
        return float("<hit>" in partial or "<none>" not in partial)


@dataclass(frozen=True)
class World:
    """A kind of steps."""

    task: type[Countdown]
    stop: str
    depth: int
    tokens: int
    """Most of a step."""
    style: str
    together: int = 1
    """Puzzles at a time."""


WORLDS = {
    "moves": World(Countdown, ";", 3, 16, "direct"),
    "tries": World(Tries, "<try>", 5, 128, "serial"),
    "tries, 4 at a time": World(Tries, "<try>", 5, 128, "serial", 4),
}


@dataclass
class Figures:
    """What one search came to in one world."""

    right: list[bool] = field(default_factory=list[bool])
    nodes: int = 0
    tokens: int = 0
    steps: int = 0
    """Of the engine."""
    lengths: list[int] = field(default_factory=list[int])
    """Tokens of each node."""


class _Counted(Tree):
    """Keeps what its runs grew."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        growth = Growth(self, ctx, ctx.brief.task.render(self.style, WIDTH))
        try:
            return await growth.answer()
        finally:
            _GROWN.append(growth)


_GROWN: list[Growth] = []


def planner(world: World, search: str) -> Tree:
    """Return a search with a budget of `WIDTH` children a depth."""
    return _Counted.model_validate(
        {
            "search": Plugin(name=search, options={"per_depth": WIDTH}),
            "scorer": Noisy(auroc=0.9),
            "n": WIDTH,
            "max_branches": WIDTH * world.depth,
            "depth": world.depth,
            "step": {"stop": (world.stop,), "max_tokens": world.tokens},
            "style": world.style,
        }
    )


async def measured(
    orchestrator: AsyncOrchestrator, engine: Engine, name: str, puzzles: int, rounds: int, seconds: float
) -> list[str]:
    """Return the lines of one world's table."""
    world = WORLDS[name]
    drawn = iter(draw(puzzles * (rounds + 1) * len(SEARCHES), 3))
    found = {search: Figures() for search in SEARCHES}

    async def solved(search: str) -> float:
        """Solve some puzzles; return the nodes a second."""
        figures, room = found[search], asyncio.Semaphore(world.together)
        before, began = engine.stats(), time.perf_counter()
        _GROWN.clear()

        async def one(problem: CountdownProblem) -> None:
            async with room:
                answer = await orchestrator.run(problem.text, task=world.task, planner=planner(world, search))
            figures.right.append(problem.is_right(answer.answer))

        await asyncio.gather(*(one(next(drawn)) for _ in range(puzzles)))
        spent, after = time.perf_counter() - began, engine.stats()
        nodes = [node for growth in _GROWN for node in growth.tree.nodes[1:]]
        figures.nodes += len(nodes)
        figures.lengths += [node.tokens for node in nodes]
        figures.steps += after["steps"] - before["steps"]
        figures.tokens += after["generated"] - before["generated"]
        return len(nodes) / spent

    def contender(search: str) -> Contender:
        return lambda: solved(search)

    done = await interleave({search: contender(search) for search in SEARCHES}, rounds, 1, seconds)
    ratio = done.ratio(*SEARCHES)
    told: list[str] = []
    for search, figures in found.items():
        told.append(
            f"| {name} | {search} | {fmean(figures.right):.0%} of {len(figures.right)} | "
            f"{fmean(figures.lengths):.1f} ± {stdev(figures.lengths):.1f} | {done.spread(search)} | "
            f"{figures.steps / figures.nodes:.2f} | {figures.tokens / figures.steps:.1f} | "
            f"{str(ratio) if search == SEARCHES[0] else ''} |"
        )
    return told


async def measure(puzzles: int, rounds: int, seconds: float, worlds: Sequence[str]) -> None:
    """Print the table as Markdown, world by world."""
    print("| steps | search | right | tokens a node | nodes a second | engine steps a node | requests a step | ratio |")
    print("|---" * 8 + "|", flush=True)
    engine = Engine(BUNDLED_MODEL, slots=64, threads=1)
    async with AsyncOrchestrator(workers=[engine], journal=None) as orchestrator:
        for name in worlds:
            told = await measured(orchestrator, engine, name, puzzles, rounds, seconds / len(worlds))
            print("\n".join(told), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments search_barrier", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=4, help="in each turn of each search")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=500.0, help="in all, about")
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    given = parser.parse_args()
    asyncio.run(measure(given.puzzles, given.rounds, given.seconds, given.worlds))
