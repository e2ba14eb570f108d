"""Three real engines of unequal speed: how long do runs wait, and how many end in time?

Where steps run on real engines of unequal speed, and how many runs end in time.

    python -m experiments unequal_engines [--rounds 4] [--load 0.8] [--seconds 480]

Three engines in Ray: one has a core for itself, two share the other one (vLLM on a CPU, the bundled model, one compute
thread and 16 places each). Runs are votes of four samples on Countdown puzzles, whose lengths are unknown beforehand.
First all engines are kept busy, to learn how many runs a second they can do; then runs arrive as a Poisson process at a
share of that, the same puzzles at the same moments under each policy. Seconds from arrival to answer (p50, p99), and
the share of runs that end within three times the median of a run alone. `deadline` gets that limit from
`Budget(seconds=…)`, which ends a run that is late; the others are not, as they do not look at it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

from plait import AsyncOrchestrator, Config
from plait.core.budget import Budget
from plait.core.lengths import quantile
from plait.core.messages import pluralise
from plait.core.ops import Plugin
from plait.runtime.client.config import BUNDLED_MODEL
from plait.workers._shared.resources import usable_cores
from plait.workers.ray import pool
from plait_bench.countdown import draw

from .._tools.command import given_of, page_options
from .._tools.kept import add_row
from .._tools.measure import interleave, spread
from .._tools.statistics import share_text

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


async def measured(kept: Path, rounds: int, load: float, seconds: float) -> None:
    """Write a row for each policy and round."""
    cores = usable_cores()
    options = {"model": str(BUNDLED_MODEL), "slots": SLOTS, "threads": 1}
    workers = pool(3, options=options, num_cpus=0.3, cores=[cores[0], cores[-1], cores[-1]])
    counts = dict.fromkeys(WAYS, 0)
    async with AsyncOrchestrator(workers=workers, config=Config(journal="off")) as plait:
        for seed in (1, 2):  # the second time all is loaded
            began = time.perf_counter()
            await play(plait, "predictive", math.inf, math.inf, seed)
            peak = RUNS / (time.perf_counter() - began)
        alone = median([(await one(plait, each.text, "predictive"))[0] for each in draw(9, 3)])
        limit = MULTIPLE * alone
        made: dict[str, Callable[[], Awaitable[float]]] = {}
        for way in WAYS:

            async def once(way: str = way) -> float:
                told = await play(plait, way, load * peak, limit, 100 + counts[way])
                taken = [each for each, _ in told]
                row = {"way": way, "round": counts[way], "p50": quantile(taken, 0.5), "p99": quantile(taken, 0.99),
                       "in_time": sum(done for _, done in told), "runs": len(told), "peak": peak, "alone": alone,
                       "share": load, "load": os.getloadavg()[0]}  # fmt: skip
                counts[way] += 1
                add_row(kept, row)
                sys.stderr.write(f"{json.dumps(row)}\n")
                return row["p99"]

            made[way] = once
        await interleave(made, rounds, 0, seconds)


ABOUT = """# Three real engines of unequal speed

Where steps go, and what runs wait for it, on vLLM rather than in the simulator.

`python -m experiments unequal_engines --rounds {number} --load {share:g}`

One engine has a core for itself, two share the other one, and the orchestrator takes part of both. Runs are votes of
four samples on held-out Countdown puzzles, {runs} a round. They arrive as a Poisson process at {share:g} of the rate
that the engines reach when all runs come at once ({peak:.1f} runs a second). In time: within {multiple:g} times the
median of a run alone ({alone:.2f} s). {rounds}, the same puzzles at the same moments for every policy of a round.
Median (lowest–highest), ratios within a round; runs in time with their 95 % interval (Wilson) over all rounds. Threads
that ran or waited for a core: {load:.0f} in the median.

| policy | p50, s | p99, s | p99 ÷ `round-robin`'s | in time | ÷ `least-loaded`'s |
|---|---|---|---|---|---|"""


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows. A round that was cut off is left out."""
    rows = [json.loads(line) for line in lines]
    whole = min(sum(row["way"] == way for row in rows) for way in WAYS)
    by = {way: [row for row in rows if row["way"] == way and row["round"] < whole] for way in WAYS}
    some = [row for each in by.values() for row in each]
    about = {name: median([row[name] for row in some]) for name in ("peak", "alone", "load", "share", "runs")}
    lines_ = ABOUT.format(**about, number=whole, rounds=pluralise(whole, "round"), multiple=MULTIPLE).splitlines()
    for way, mine in by.items():
        tail = spread([a["p99"] / b["p99"] for a, b in zip(mine, by["round-robin"], strict=True)])
        pairs = zip(mine, by["least-loaded"], strict=True)
        gain = spread([a["in_time"] / b["in_time"] for a, b in pairs if b["in_time"]] or [math.nan])
        done, of = (sum(row[name] for row in mine) for name in ("in_time", "runs"))
        cells = [str(spread([row[name] for row in mine])) for name in ("p50", "p99")]
        cells += [str(tail), share_text(done, of), str(gain)]
        lines_.append(f"| `{way}` | {' | '.join(cells)} |")
    return "\n".join([*lines_, ""])


def main() -> None:
    """Measure, write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments unequal_engines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--load", type=float, default=0.8, help="share of the runs a second that the engines can do")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no round begins that would end later")
    page_options(parser, "unequal_engines")
    options = parser.parse_args()
    given = given_of(options, "unequal_engines")
    kept = given.records / "unequal_engines.jsonl"
    if not given.report:
        kept.unlink(missing_ok=True)
        asyncio.run(measured(kept, options.rounds, options.load, options.seconds))
    found = given.rows(kept)
    sys.stdout.write(given.write(page_of(found.lines), found))
