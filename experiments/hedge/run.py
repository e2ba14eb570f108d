"""One slow engine of several: how long do votes take with the policy `hedge`, and without?

One slow engine of several, for real: how long votes take with the policy `hedge` and without.

Puzzles come one after another (Poisson arrivals, the same moments for both) and are voted on by 8 samples each. One of
the engine actors gets a quarter of its time: its process is stopped and continued (SIGSTOP, SIGCONT) five times a
second. With and without `hedge` in turn, round by round; the percentiles are of all rounds' runs together, the spread
that of the rounds. Beside the time: unused tokens, and all tokens sampled against those without hedging.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait import Answer, AsyncOrchestrator, ModelCall, Sampling
from plait.core.events import Job
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.workers.ray import RayWorker, pool
from plait_bench.countdown import draw

from .._tools.measure import Row, spread

ENGINES = min(4, max(2, len(os.sched_getaffinity(0)) - 1))
"""One core is left for the scheduler, if there are more than two."""
ROUNDS, RUNS, RATE = 4, 40, 2.0
"""Rounds; runs in each; runs that come in a second."""
SHARE, PERIOD = 0.25, 0.2
"""Of its time that the slow engine runs, and how long one turn of stopping and continuing takes, in seconds."""
PLANNER = "sample:n=8"
PLACES = ("affinity", "least-loaded")


class Throttle:
    """Lets a process run a share of the time only, from `start` to `end`. For processes that the benchmark began."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def start(self) -> None:
        """Begin to stop and continue it."""
        self._thread.start()

    def end(self) -> None:
        """Let it run again."""
        self._over.set()
        self._thread.join()

    def _turn(self) -> None:
        due = time.perf_counter()  # times of its own, so that lateness does not add up
        try:
            while not self._over.is_set():
                for what, share in ((signal.SIGSTOP, 1 - SHARE), (signal.SIGCONT, SHARE)):
                    os.kill(self._pid, what)
                    due += PERIOD * share
                    time.sleep(max(0.0, due - time.perf_counter()))
        except ProcessLookupError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)


@dataclass
class Found:
    """What one way came to, round by round."""

    seconds: list[list[float]] = field(default_factory=list)
    """Of each run, from its arrival to its answer."""
    cancelled: int = 0
    """Unused tokens."""
    sampled: int = 0
    """All tokens that the engines sampled."""
    hedged: int = 0
    """Steps that had a second attempt."""

    def percentile(self, share: float) -> str:
        """Return a percentile of all runs' seconds, and the spread of the rounds'."""
        each = spread([at(seconds, share) for seconds in self.seconds])
        return f"{at(list(itertools.chain(*self.seconds)), share):.3g} ({each.low:.3g}–{each.high:.3g})"

    def whole(self, share: float) -> float:
        """Return a percentile of all runs' seconds."""
        return at(list(itertools.chain(*self.seconds)), share)


def at(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of them lies (the nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def arrivals(orchestrator: AsyncOrchestrator, policies: list[str], seed: int, runs: int) -> list[Answer]:
    """Let puzzles come one after another; return the answers."""
    rng = random.Random(seed)

    async def one(text: str, number: int) -> Answer:
        return await orchestrator.run(text, task="countdown", planner=PLANNER, policies=policies, seed=number)

    tasks: list[asyncio.Task[Answer]] = []
    for number, problem in enumerate(draw(runs, seed)):
        tasks.append(asyncio.create_task(one(problem.text, number)))
        await asyncio.sleep(rng.expovariate(RATE))
    return await asyncio.gather(*tasks)


async def measured(
    orchestrator: AsyncOrchestrator, workers: list[RayWorker], policies: list[str], seed: int, found: Found
) -> None:
    """Add one round."""
    before = [(await worker.stats())["generated"] for worker in workers]
    driver = orchestrator._driver
    assert driver is not None
    began = driver.machine.last_attempt
    answers = await arrivals(orchestrator, policies, seed, RUNS)
    wrong = [answer.failure for answer in answers if answer.status != "done"]
    assert not wrong, wrong[0]
    found.seconds.append([answer.seconds for answer in answers])
    found.cancelled += sum(answer.usage.cancelled for answer in answers)
    found.sampled += sum([(await worker.stats())["generated"] for worker in workers]) - sum(before)
    thinks = sum(row.kind == "think" for answer in answers for row in answer.report.steps)
    found.hedged += driver.machine.last_attempt - began - thinks


async def speed(worker: RayWorker) -> float:
    """Return the tokens a second that an engine makes of 16 samples, given to it directly."""

    async def one(number: int) -> None:
        op = ModelCall(prompt="12 7 3 5 -> 41 <go>", sampling=Sampling(max_tokens=400, temperature=1.0, seed=number))
        async for _ in worker.run(Job(attempt=-1 - number, run="speed", step=f"speed:{number}", op=op)):
            pass

    before, began = (await worker.stats())["generated"], time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(16)))
    return ((await worker.stats())["generated"] - before) / (time.perf_counter() - began)


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    if "RAY_ADDRESS" in os.environ:
        raise RuntimeError("an engine is slowed down by signals: on this machine only, so unset RAY_ADDRESS")
    workers = pool(ENGINES, options={"model": str(BUNDLED_MODEL), "slots": 64, "kv_cache_memory_bytes": 256 << 20})
    async with AsyncOrchestrator(workers=workers, config=Config(journal="off")) as orchestrator:
        await arrivals(orchestrator, [], 99, 8)
        *_, slow = workers
        assert slow.pid is not None
        whole = await speed(slow)
        throttle = Throttle(slow.pid)
        throttle.start()
        try:
            rows = [_slowed(whole, [await speed(slow) for _ in range(3)])]
            for place in PLACES:
                rows += _rows(place, await _in_turn(orchestrator, workers, place))
        finally:
            throttle.end()
    return rows


async def _in_turn(orchestrator: AsyncOrchestrator, workers: list[RayWorker], place: str) -> tuple[Found, Found]:
    """Return the results without `hedge` and with it."""
    off, on = Found(), Found()
    for number in range(ROUNDS):
        both = [([place], off), ([place, "hedge"], on)]
        for policies, found in both if number % 2 == 0 else reversed(both):
            await measured(orchestrator, workers, policies, 100 + number, found)
    return off, on


def _slowed(whole: float, throttled: list[float]) -> Row:
    shares = spread([each / whole for each in throttled])
    what = "tokens a second of the slow engine, throttled and not"
    return Row(what, str(spread(throttled)), f"{whole:.3g}", str(shares), f"{SHARE}")


def _rows(place: str, both: tuple[Found, Found]) -> list[Row]:
    off, on = both
    runs = f"votes, one of {ENGINES} engines slow, {place}"
    rows = [
        Row(
            f"{name} seconds of {runs}",
            f"hedge {on.percentile(share)}",
            off.percentile(share),
            f"{on.whole(share) / off.whole(share):.2f}",
            "p99 lower" if name == "p99" else "",
        )
        for name, share in (("median", 0.5), ("p99", 0.99))
    ]
    ours = f"{on.hedged} steps hedged, {on.cancelled / on.sampled:.1%} of tokens unused; {on.sampled:,} sampled"
    rows.append(Row(f"tokens, {runs}", ours, f"{off.sampled:,} sampled", f"{on.sampled / off.sampled:.3f}"))
    return rows
