"""Autoscaling of engines: choose their number by the load, and start or close them.

`Scaler` is pure. It chooses the number of engines at which a fraction `target` of the
slots is taken, and looks back before it acts, as Kubernetes' horizontal autoscaler does: it grows to the minimum of the
last `patience` seconds, and shrinks to the maximum of the last `cool_down`.

A draining engine takes no new steps. Attempts that still run after `drain` seconds continue on other engines from their
reported tokens.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from pydantic import Field

from ...core.errors import RAISED, Interrupted
from ...core.events import Event, Failed, WorkerUp
from ...core.interfaces import Worker, offer
from ...core.result import as_failure
from ...core.values import Frozen
from ...machine import Machine

log = logging.getLogger("plait.elastic")

CHECK_INTERVAL_S = 0.5
"""Seconds between two checks of the load."""


class Bounds(Frozen):
    """Limits of the number of engines, and delays of its changes in seconds."""

    least: int = Field(default=1, ge=1)
    most: int = Field(default=1, ge=1)
    target: float = Field(default=0.8, gt=0, le=1)
    """Target fraction of taken slots."""
    patience: float = Field(default=2.0, ge=0)
    """Delay in seconds before an engine starts under a higher load."""
    cool_down: float = Field(default=60.0, ge=0)
    """Delay in seconds before an engine is closed under a lower load."""
    drain: float = Field(default=10.0, ge=0)
    """Seconds that a draining engine has to end its attempts."""


class Scaler:
    """Chooses the number of engines. Pure: callers pass time and load."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._wanted: deque[tuple[float, int]] = deque()
        """Chosen numbers with their times, over the longer of the two delays."""

    def choose_count(self, now: float, steps: int, slots: int, engines: int) -> int:
        """Return the number of engines for `steps` that run or could run, if `engines` with `slots` each exist or are
        starting. Times must not decrease."""
        bounds = self.bounds
        need = math.ceil(steps / (bounds.target * max(1, slots)))
        self._wanted.append((now, min(bounds.most, max(bounds.least, need))))
        span = max(bounds.patience, bounds.cool_down)
        while len(self._wanted) > 1 and self._wanted[1][0] <= now - span:  # keep one as old as the span
            self._wanted.popleft()
        # The minimum of a short span and the maximum of a long one: a short peak starts no engine, a short lull closes
        # none.
        grown, kept = self._within(now, bounds.patience), self._within(now, bounds.cool_down)
        number = max(min(grown, default=0), min(max(kept, default=engines), engines))
        return min(bounds.most, max(bounds.least, number))

    def _within(self, now: float, span: float) -> list[int]:
        """Return the numbers chosen in a span that ends now; empty if the record is shorter than the span."""
        if self._wanted[0][0] > now - span:
            return []
        return [number for at, number in self._wanted if at > now - span] or [self._wanted[-1][1]]


def interrupt_attempts(machine: Machine, worker: str, at: float) -> list[Failed]:
    """Return events that end the live attempts of an engine before it is closed. Their steps continue on other engines
    from the reported tokens. They have lost no worker: plait itself removed it."""
    failure = as_failure(Interrupted(f"the autoscaler removed {worker}"))
    live = (one for one in machine.attempts.values() if one.worker.name == worker and one.state == "live")
    return [Failed(at, attempt.id, failure) for attempt in live]


class ElasticDriver(Protocol):
    """The part of a driver that autoscaling uses."""

    machine: Machine

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def post(self, event: Event) -> None:
        """Hand in an event."""
        ...

    def join(self, worker: Worker) -> None:
        """Add a started worker."""
        ...


class Elastic:
    """Starts and closes the workers of a pool. The driver starts the first `least` of them.

    A worker must support `start` after `close`.
    """

    def __init__(self, driver: ElasticDriver, pool: Sequence[Worker], bounds: Bounds) -> None:
        self._driver, self._pool, self._bounds = driver, list(pool), bounds
        self._scaler = Scaler(bounds)
        self._going: dict[str, float] = {}
        """Time at which a draining worker is closed."""
        self._work: dict[str, asyncio.Task[None]] = {}
        """Workers that are being started or closed."""
        self._again: dict[str, float] = {}
        """Time of the next try to start a worker that failed to start."""

    @property
    def asleep(self) -> list[Worker]:
        """The workers that start only under load."""
        return self._pool[self._bounds.least :]

    async def run(self) -> None:
        """Check the load at regular intervals, until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(CHECK_INTERVAL_S)
        finally:
            tasks = list(self._work.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """Start engines, or drain one, according to the load."""
        now, machine = self._driver.now(), self._driver.machine
        states = {worker.name: machine.workers.get(worker.name) for worker in self._pool}
        for worker in self._pool:
            state, until = states[worker.name], self._going.get(worker.name)
            if until is None or worker.name in self._work:
                continue
            if state is None or not state.up:
                del self._going[worker.name]
            elif not state.running or now >= until:
                self._remove(worker)
        here = [
            worker
            for worker in self._pool
            if (state := states[worker.name]) is not None and (state.up or state.returning)
            and worker.name not in self._going
        ]  # fmt: skip
        absent = [worker for worker in self._pool if worker not in here and worker.name not in self._going]
        starting = [worker for worker in absent if worker.name in self._work]
        slots = max(worker.slots for worker in self._pool)
        wanted = self._scaler.choose_count(now, machine.model_steps, slots, len(here) + len(starting))
        ready = [worker for worker in absent if worker not in starting and self._again.get(worker.name, now) <= now]
        for worker in ready[: max(0, wanted - len(here) - len(starting))]:
            self._begin(worker, self._start(worker))
        # One engine at a time: the load of a drained engine must show on the others before the next one drains.
        if len(here) > wanted and not starting and not self._going:
            least = min(here, key=lambda worker: (machine.workers[worker.name].running, -self._pool.index(worker)))
            self._going[least.name] = now + self._bounds.drain
            # Zero slots and not `WorkerDown`: its attempts may end, and no step waits for it.
            offered = offer(least)
            self._driver.post(
                WorkerUp(now, least.name, 0, offered.serves, offered.models, offered.cache_tokens, offered.block)
            )

    def _remove(self, worker: Worker) -> None:
        for event in interrupt_attempts(self._driver.machine, worker.name, self._driver.now()):
            self._driver.post(event)
        self._begin(worker, worker.close())

    def _begin(self, worker: Worker, work: Coroutine[Any, Any, None]) -> None:
        task = self._work[worker.name] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._work.pop(worker.name, None))

    async def _start(self, worker: Worker) -> None:
        try:
            await worker.close()  # a worker that died may have left resources
            await worker.start()
        except RAISED as error:
            log.warning("%s did not start: %s", worker.name, error)
            self._again[worker.name] = self._driver.now() + max(self._bounds.cool_down, CHECK_INTERVAL_S)
            return
        self._driver.join(worker)
