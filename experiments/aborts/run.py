"""How many tokens do the losers of a decided vote still get, counted inside the engine?

Tokens that losers of a decided vote still get, counted inside the engine.

Votes of 8 with a verifier, stopped at the first right answer, several in flight. The engine notes at which of its steps
the deciding sample ended, at which the order to abort each loser arrived in its process, and at which the loser left.
*Late* are the tokens sampled for a loser after the deciding sample had ended: those of the steps that passed while the
news and the order travelled, and of the one in progress when the order came. In process, and through a Ray actor.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plait import AsyncOrchestrator
from plait.core.events import Cancel, Job
from plait.core.interfaces import Worker
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.workers.engine import Engine
from plait.workers.ray import CHECKPOINT_STEPS, RayWorker
from plait_bench.countdown import draw

from .._tools.measure import Row, spread

PROBLEMS, IN_FLIGHT = 60, (1, 4)
PLANNER = "sample:n=8,merge=best-of"


class Watched(Engine):
    """An engine that writes down at which of its steps requests end, orders to abort come, and aborted ones leave."""

    def __init__(self, *args: Any, ledger: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ledger = Path(ledger)
        self._noted: list[tuple[str, int, int, float]] = []
        self._attempts: dict[str, int] = {}

    async def start(self) -> None:
        """Start the engine and listen to it."""
        await super().start()
        core = self._core
        assert core is not None
        end = core._end

        def ended(order: Any, news: Any, reason: str | None, stop: Any) -> None:
            self._note("left" if reason == "abort" else "ended", self._attempts.pop(order.key, 0))
            end(order, news, reason, stop)

        core._end = ended  # type: ignore[method-assign]

    async def cancel(self, attempt: int) -> None:
        """Abort a request."""
        self._note("ordered", attempt)
        await super().cancel(attempt)

    def stats(self) -> dict[str, int]:
        """Return the counters, and write down what was noted."""
        self._ledger.write_text("\n".join(map(json.dumps, self._noted)))
        return super().stats()

    def _order(self, job: Job, *report: Any) -> Any:
        order = super()._order(job, *report)
        if (key := getattr(order, "key", None)) is not None:
            self._attempts[key] = job.attempt
        return order

    def _note(self, what: str, attempt: int) -> None:
        assert self._core is not None
        self._noted.append((what, attempt, self._core.counts["steps"], time.monotonic()))


class Loss(NamedTuple):
    """What one loser of a decided vote cost, in engine steps; each samples one token for it."""

    late: int
    """From the end of the deciding sample to its own."""
    travel: int
    """Of these, until the order to abort it was in the engine's process."""
    seconds: float
    """How long that took."""

    @property
    def finishing(self) -> int:
        """Steps from the arrival of the order to its end."""
        return self.late - self.travel


def losses(ledger: Path, decisions: Sequence[tuple[int, Sequence[int]]]) -> list[Loss]:
    """Return the losses of decided votes: of the attempt that decided each, and of those given up because of it. A
    loser that had ended by itself before the order came does not count."""
    noted = [json.loads(line) for line in ledger.read_text().splitlines()]
    steps = {(what, attempt): (step, at) for what, attempt, step, at in noted}
    found: list[Loss] = []
    for decider, losers in decisions:
        ended, at = steps["ended", decider]
        for loser in losers:
            if ("left", loser) in steps and ("ordered", loser) in steps:
                (ordered, came), (left, _) = steps["ordered", loser], steps["left", loser]
                found.append(Loss(left - ended, ordered - ended, came - at))
    return found


async def decided(orchestrator: AsyncOrchestrator, problems: int, in_flight: int) -> list[tuple[int, list[int]]]:
    """Run votes; return who decided each and whom it was the end of."""
    decisions: list[tuple[int, list[int]]] = []
    await orchestrator.start()
    driver = orchestrator._driver
    assert driver is not None

    def watch(event: Any, machine: Any, actions: Any) -> None:
        given_up = [each.attempt for each in actions if isinstance(each, Cancel) and each.attempt is not None]
        if event.kind == "succeeded" and given_up:
            decisions.append((event.attempt, given_up))

    room = asyncio.Semaphore(in_flight)

    async def one(number: int, text: str) -> None:
        async with room:
            await orchestrator.run(text, task="countdown", planner=PLANNER, policies=["consensus"], seed=number)

    driver.watchers.append(watch)
    try:
        await asyncio.gather(*(one(number, each.text) for number, each in enumerate(draw(problems, 3))))
    finally:
        driver.watchers.remove(watch)
    return decisions


async def counted(worker: Worker, ledger: Path, problems: int, in_flight: int) -> list[Loss]:
    """Return the cost of the losers of some votes on one engine."""
    async with AsyncOrchestrator(workers=[worker], config=Config(journal="off")) as orchestrator:
        await decided(orchestrator, 8, 8)
        decisions = await decided(orchestrator, problems, in_flight)
        stats: Any = worker.stats()  # type: ignore[attr-defined]
        if asyncio.iscoroutine(stats):
            await stats
    return losses(ledger, decisions)


def engine(where: str, ledger: Path) -> Worker:
    """Return a watched engine, `in process` or in an actor (`ray`)."""
    options: dict[str, Any] = {"model": str(BUNDLED_MODEL), "kv_cache_memory_bytes": 128 << 20, "threads": 1}
    options["ledger"] = str(ledger)
    if where == "ray":
        return RayWorker("experiments.aborts.run:Watched", {**options, "checkpoint": CHECKPOINT_STEPS})
    return Watched(**options)


async def run() -> list[Row]:
    """Count and return the table's rows."""
    rows: list[Row] = []
    for in_flight in IN_FLIGHT:
        for where in ("in process", "ray"):
            with tempfile.TemporaryDirectory() as folder:
                ledger = Path(folder) / "ledger.jsonl"
                found = await counted(engine(where, ledger), ledger, PROBLEMS, in_flight)
                rows.append(_row(where, in_flight, found))
    return rows


def _row(name: str, in_flight: int, found: Sequence[Loss]) -> Row:
    late, travel = spread([each.late for each in found]), spread([each.travel for each in found])
    finishing = max(each.finishing for each in found)
    within = sum(each.late <= 1 for each in found) / len(found)
    ours = f"{late} late, {travel} of them in transit ({1000 * spread([each.seconds for each in found]).median:.1f} ms)"
    says = f"{len(found)} losers; {within:.0%} at most 1 late"
    what = f"tokens late a loser, {name}, {in_flight} votes in flight"
    return Row(what, ours, says, f"{finishing} from arrival to end at most", "≤ 1 from arrival; ≤ 1 in all")
