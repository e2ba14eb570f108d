"""A worker that belongs to one driver, lent to another: same slots, attempt ids of its own range.

Workers know attempts by number, and two machines number theirs alike; so the borrower's are moved out of the way. Knows
nothing of what is run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from ...core.events import Action, Event, Job, WorkerDown, WorkerUp
from ...core.interfaces import Progress, Worker
from ...core.result import Failure, Result
from ...machine.machine import Machine
from ..driver.driver import Driver
from ..driver.worker_proxy import WorkerProxy

RANGE = 1_000_000_000
"""Attempts that one driver may make before its ids reach the next one's."""


class Lent(WorkerProxy):
    """A worker for a second driver. Its owner starts and closes it, and tells of its health (`tell`)."""

    def __init__(self, worker: Worker, borrower: int) -> None:
        super().__init__(worker)
        self._first = borrower * RANGE
        self._health: asyncio.Queue[bool | None] = asyncio.Queue()

    async def start(self) -> None:
        """It runs already."""

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Have the worker do the job under a number that its owner does not use."""
        async for item in self.inner.run(replace(job, attempt=self._first + job.attempt)):
            yield item

    async def cancel(self, attempt: int) -> None:
        """Have the worker stop an attempt."""
        await self.inner.cancel(self._first + attempt)

    async def health(self) -> AsyncIterator[bool]:
        """Yield what the owner hears."""
        yield True
        while (healthy := await self._health.get()) is not None:
            self.look()
            yield healthy

    def tell(self, event: Event) -> None:
        """Take the news that the owner has of the worker."""
        match event:
            case WorkerUp(worker=name) if name == self.name:
                self._health.put_nowait(True)
            case WorkerDown(worker=name, returning=returning) if name == self.name:
                self._health.put_nowait(False if returning else None)
            case _:
                pass

    async def close(self) -> None:
        """It goes on for its owner."""
        self._health.put_nowait(None)


def relay(owner: Driver, lent: Sequence[Lent]) -> Callable[[], None]:
    """Tell lent workers what their owner hears of them, now and from now on; return what ends that."""

    def told(event: Event, machine: Machine, actions: list[Action]) -> None:
        for each in lent:
            each.tell(event)

    for each in lent:
        host = owner.machine.workers.get(each.name)
        if host is not None and not host.up:
            each.tell(WorkerDown(at=owner.now(), worker=each.name, returning=host.returning))
    owner.watchers.append(told)

    def end() -> None:
        with contextlib.suppress(ValueError):
            owner.watchers.remove(told)

    return end
