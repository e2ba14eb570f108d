"""Three real engines of unequal speed: how long do runs wait, and how many end in time?

Where steps go on real engines of unequal speed, and how many runs end in time.

    python -m experiments unequal_engines [--rounds 4] [--load 0.8] [--seconds 480]

Three engines in Ray: one has a core for itself, two share the other one (vLLM on a CPU, the bundled model, one compute
thread and 16 places each). Runs are votes of four samples on Countdown puzzles, whose lengths nobody knows beforehand.
First all engines are kept busy, to learn how many runs a second they can do; then runs arrive as a Poisson process at a
share of that, the same puzzles at the same moments under each policy. Seconds from arrival to answer (p50, p99), and
the share of runs that end within three times the median of a run alone. `deadline` is told of that limit by
`Budget(seconds=…)`, which ends a run that is late; the others are not, as they do not look at it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from plait import AsyncOrchestrator, Config
from plait.apps.common.problems import draw
from plait.core.budget import Budget
from plait.core.lengths import quantile
from plait.core.ops import Plugin
from plait.runtime.client.config import BUNDLED_MODEL
from plait.workers._shared.resources import usable_cores
from plait.workers.ray import pool

from .._tools.measure import interleave, spread

RUNS, SLOTS, MULTIPLE = 120, 16, 3.0
WAYS: dict[str, tuple[str, ...]] = {
    "round-robin": ("round-robin",),
    "least-loaded": ("least-loaded",),
    "affinity": ("affinity",),
    "predictive": ("predictive",),
    "deadline + predictive": ("deadline", "predictive"),
}
PLANNER = Plugin(name="sample", options={"n": 4})


async def one(plait: AsyncOrchestrator, puzzle: str, way: str, limit: float = math.inf) -> tuple[float, bool]:
    """Solve a puzzle. Return its seconds, and whether it ended in time."""
    began = time.perf_counter()
    policies = tuple(Plugin(name=name) for name in WAYS[way])
    told = Budget(seconds=limit) if "deadline" in WAYS[way] and limit < math.inf else None
    answer = await plait.run(puzzle, task="countdown", planner=PLANNER, policies=policies, budget=told)
    taken = time.perf_counter() - began
    return taken, answer.status == "done" and taken <= limit


async def play(plait: AsyncOrchestrator, way: str, rate: float, limit: float, seed: int) -> list[tuple[float, bool]]:
    """Have runs come at a rate a second; infinite: all at once."""
    rng = random.Random(seed)
    puzzles = [each.text for each in draw(RUNS, seed)]
    gaps = [rng.expovariate(1.0) / rate for _ in puzzles]
    tasks: list[asyncio.Task[tuple[float, bool]]] = []
    due = time.perf_counter()
    for puzzle, gap in zip(puzzles, gaps, strict=True):
        due += gap
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(plait, puzzle, way, limit)))
    return list(await asyncio.gather(*tasks))


async def measured(rounds: int, load: float, seconds: float) -> str:
    """Return the table."""
    cores = usable_cores()
    options = {"model": str(BUNDLED_MODEL), "slots": SLOTS, "threads": 1}
    workers = pool(3, options=options, num_cpus=0.3, cores=[cores[0], cores[-1], cores[-1]])
    p50, p99, share = ({way: list[float]() for way in WAYS} for _ in range(3))
    async with AsyncOrchestrator(workers=workers, config=Config(journal="off")) as plait:
        for seed in (1, 2):  # the second time all is loaded
            began = time.perf_counter()
            await play(plait, "predictive", math.inf, math.inf, seed)
            peak = RUNS / (time.perf_counter() - began)
        alone = median([(await one(plait, each.text, "predictive"))[0] for each in draw(9, 3)])
        limit = MULTIPLE * alone
        sys.stderr.write(f"{peak:.1f} runs a second at most; alone {alone:.2f} s\n")
        made: dict[str, Callable[[], Awaitable[float]]] = {}
        for way in WAYS:

            async def once(way: str = way) -> float:
                told = await play(plait, way, load * peak, limit, 100 + len(p50[way]))
                taken = [each for each, _ in told]
                p50[way].append(quantile(taken, 0.5))
                p99[way].append(quantile(taken, 0.99))
                share[way].append(sum(done for _, done in told) / len(told))
                sys.stderr.write(f"{way}: {p50[way][-1]:.2f} s, {p99[way][-1]:.2f} s, {share[way][-1]:.0%}\n")
                return p99[way][-1]

            made[way] = once
        await interleave(made, rounds, 0, seconds)
    lines = [
        "| policy | p50, s | p99, s | p99 ÷ `round-robin`'s | in time | ÷ `least-loaded`'s |",
        "|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        tail = spread([a / b for a, b in zip(p99[way], p99["round-robin"], strict=True)])
        gain = spread([a / b for a, b in zip(share[way], share["least-loaded"], strict=True) if b])
        percent = spread([100 * each for each in share[way]])
        lines.append(f"| `{way}` | {spread(p50[way])} | {spread(p99[way])} | {tail} | {percent} % | {gain} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments unequal_engines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--load", type=float, default=0.8, help="share of the runs a second that the engines can do")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no round begins that would end later")
    options = parser.parse_args()
    sys.stdout.write(asyncio.run(measured(options.rounds, options.load, options.seconds)) + "\n")
