"""Engines that come and go with the load: how many there should be, and the task that sees to it.

`Scaler` is pure and runs in the simulator as well. It wants as many engines as keep `target` of the slots taken, and it
looks back before it acts, as Kubernetes' horizontal autoscaler does: it grows to the least that was wanted in the last
`patience` seconds, and shrinks to the most that was wanted in the last `cool_down`.

An engine that is to go takes no new steps. What it still runs after `drain` seconds goes on elsewhere from the tokens
that it has told.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from pydantic import Field

from ...core.errors import RAISED
from ...core.events import Event, WorkerUp
from ...core.interfaces import Worker, offer
from ...core.values import Frozen
from ...machine import Machine

__all__ = ["Bounds", "Elastic", "Scaler"]

log = logging.getLogger("plait.elastic")

INTERVAL = 0.5
"""Seconds between two looks at the load."""


class Bounds(Frozen):
    """How many engines there may be, and how quickly that changes. Seconds."""

    least: int = Field(default=1, ge=1)
    most: int = Field(default=1, ge=1)
    target: float = Field(default=0.8, gt=0, le=1)
    """Share of the slots that should be taken."""
    patience: float = Field(default=2.0, ge=0)
    """For so long more engines must have been wanted before one comes."""
    cool_down: float = Field(default=60.0, ge=0)
    """For so long fewer must have been wanted before one goes."""
    drain: float = Field(default=10.0, ge=0)
    """That an engine which goes gets to end what it runs."""


class Scaler:
    """Says how many engines there should be. Pure: it is told time and load."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._wanted: deque[tuple[float, int]] = deque()
        """What was wanted, within the longer of the two spans."""

    def wanted(self, now: float, steps: int, slots: int, engines: int) -> int:
        """Return how many engines there should be, where `engines` of so many slots each are there or starting, and so
        many steps run or could run. Times must not decrease."""
        bounds = self.bounds
        need = math.ceil(steps / (bounds.target * max(1, slots)))
        self._wanted.append((now, min(bounds.most, max(bounds.least, need))))
        span = max(bounds.patience, bounds.cool_down)
        while len(self._wanted) > 1 and self._wanted[1][0] <= now - span:  # one is kept that is as old as the span
            self._wanted.popleft()
        grown, kept = self._within(now, bounds.patience), self._within(now, bounds.cool_down)
        number = max(min(grown, default=0), min(max(kept, default=engines), engines))
        return min(bounds.most, max(bounds.least, number))

    def _within(self, now: float, span: float) -> list[int]:
        """Return what was wanted in a span that ends now; nothing if it has not been looked at for so long."""
        if self._wanted[0][0] > now - span:
            return []
        return [number for at, number in self._wanted if at > now - span] or [self._wanted[-1][1]]


class ElasticDriver(Protocol):
    """The part of a driver that is needed here."""

    machine: Machine

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def post(self, event: Event) -> None:
        """Hand in an event."""
        ...

    def join(self, worker: Worker) -> None:
        """Take a worker in that has started."""
        ...


class Elastic:
    """Starts and closes the workers of a pool. The first `least` of them are the driver's to start.

    A worker has to bear being started again after `close`.
    """

    def __init__(self, driver: ElasticDriver, pool: Sequence[Worker], bounds: Bounds) -> None:
        self._driver, self._pool, self._bounds = driver, list(pool), bounds
        self._scaler = Scaler(bounds)
        self._going: dict[str, float] = {}
        """When a worker that goes is to be closed."""
        self._work: dict[str, asyncio.Task[None]] = {}
        """Workers that are being started or closed."""
        self._again: dict[str, float] = {}
        """When a worker that would not start is tried again."""

    @property
    def asleep(self) -> list[Worker]:
        """The workers that are not to be started with the others."""
        return self._pool[self._bounds.least :]

    async def run(self) -> None:
        """Look at the load now and then, until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(INTERVAL)
        finally:
            tasks = list(self._work.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """Let engines come, or one go, as the load wants."""
        now, machine = self._driver.now(), self._driver.machine
        states = {worker.name: machine.workers.get(worker.name) for worker in self._pool}
        for worker in self._pool:
            state, until = states[worker.name], self._going.get(worker.name)
            if until is None or worker.name in self._work:
                continue
            if state is None or not state.up:
                del self._going[worker.name]
            elif not state.running or now >= until:
                self._begin(worker, worker.close())  # what it runs ends as lost, with the tokens told, and goes on
        here = [
            worker
            for worker in self._pool
            if (state := states[worker.name]) is not None and (state.up or state.returning)
            and worker.name not in self._going
        ]  # fmt: skip
        absent = [worker for worker in self._pool if worker not in here and worker.name not in self._going]
        starting = [worker for worker in absent if worker.name in self._work]
        slots = max(worker.slots for worker in self._pool)
        wanted = self._scaler.wanted(now, machine.model_steps, slots, len(here) + len(starting))
        ready = [worker for worker in absent if worker not in starting and self._again.get(worker.name, now) <= now]
        for worker in ready[: max(0, wanted - len(here) - len(starting))]:
            self._begin(worker, self._start(worker))
        if len(here) > wanted and not starting and not self._going:
            least = min(here, key=lambda worker: (machine.workers[worker.name].running, -self._pool.index(worker)))
            self._going[least.name] = now + self._bounds.drain
            offered = offer(least)
            self._driver.post(
                WorkerUp(now, least.name, 0, offered.serves, offered.models, offered.cache_tokens, offered.block)
            )

    def _begin(self, worker: Worker, work: Coroutine[Any, Any, None]) -> None:
        task = self._work[worker.name] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._work.pop(worker.name, None))

    async def _start(self, worker: Worker) -> None:
        try:
            await worker.close()  # of one that died for good something may be left
            await worker.start()
        except RAISED as error:
            log.warning("%s did not come: %s", worker.name, error)
            self._again[worker.name] = self._driver.now() + max(self._bounds.cool_down, INTERVAL)
            return
        self._driver.join(worker)
