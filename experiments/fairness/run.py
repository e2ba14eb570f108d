"""How long does a run of one step take beside one of 800 branches?

How long a run of one step takes beside one of 800 branches: 8 slots, 50 ms a step, a scripted worker.

By hand, the same calls go through one semaphore of 8, which serves them in order of arrival.
"""

from __future__ import annotations

import asyncio
import time

from plait import AsyncOrchestrator
from plait.workers.scripted import Reply, Scripted

from .._tools.measure import Row, interleave

SLOTS, SECONDS, BRANCHES, ROUNDS = 8, 0.05, 800, 5


def _client() -> AsyncOrchestrator:
    worker = Scripted([Reply(text="answer: 4", delay=SECONDS)], slots=SLOTS)
    return AsyncOrchestrator(workers=[worker], journal="off")


async def _ours(branches: int, **options: object) -> float:
    """Return the seconds that a run of one step takes, begun while a run of `n` branches is active."""
    async with _client() as plait:
        await plait.run("warm")
        large = await plait.submit("2 + 2?", planner="sample", n=branches) if branches else None
        await asyncio.sleep(3.3 * SECONDS)
        start = time.perf_counter()
        answer = await plait.run("2 + 2?", **options)  # type: ignore[arg-type]
        seconds = time.perf_counter() - start
        assert answer.answer == "4"
        if large is not None:
            large.cancel()
            await large
    return seconds


async def _by_hand(branches: int) -> float:
    gate = asyncio.Semaphore(SLOTS)

    async def call() -> None:
        async with gate:
            await asyncio.sleep(SECONDS)

    large = [asyncio.ensure_future(call()) for _ in range(branches)]
    await asyncio.sleep(3.3 * SECONDS)
    start = time.perf_counter()
    await call()
    seconds = time.perf_counter() - start
    for each in large:
        each.cancel()
    await asyncio.gather(*large, return_exceptions=True)
    return seconds


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    contenders = {
        "alone": lambda: _ours(0),
        "beside": lambda: _ours(BRANCHES),
        "last": lambda: _ours(BRANCHES, priority=1),
        "by hand": lambda: _by_hand(BRANCHES),
    }
    figures = await interleave(contenders, ROUNDS, warmup=0)
    alone = f"alone {figures.spread('alone')} s"
    rows = [
        Row(
            "one step beside 800", f"{figures.spread('beside')} s", alone, str(figures.ratio("beside", "alone")), "≤ 3"
        ),
        Row("the same with priority=1", f"{figures.spread('last')} s", alone, str(figures.ratio("last", "alone")), ""),
        Row(
            "by hand, one semaphore",
            f"{figures.spread('by hand')} s",
            alone,
            str(figures.ratio("by hand", "alone")),
            "",
        ),
    ]
    return rows
