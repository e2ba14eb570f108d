"""Gives up attempts of which nothing was heard for long: a worker may forget a job and yet be well otherwise.

What it says is an event like any other, so a replay needs no clock.
"""

from __future__ import annotations

import asyncio

from ...core.errors import WorkerLost
from ...core.events import Failed
from ...core.interfaces import Worker
from ...core.ops import Kind
from ...core.result import as_failure
from .driver import Driver

SILENCE = 900.0
"""Seconds without any news of a model step, after which it is taken for lost."""
DAY = 86_400.0
"""The same of a call: some take hours, and say nothing until they have ended."""


async def watch(driver: Driver, thinks: float, calls: float) -> None:
    """Look again and again for attempts that have been silent for so many seconds, until cancelled."""
    while True:
        await asyncio.sleep(min(thinks, calls) / 10)
        now = driver.now()
        for attempt in list(driver.machine.attempts.values()):
            name = attempt.worker.name
            seconds = _most(driver.jobs.workers.get(name), attempt.node.step.op.kind, thinks, calls)
            if seconds is None or attempt.state != "live" or now - attempt.heartbeat < seconds:
                continue
            message = (
                f"worker {name} has said nothing about this step for {seconds:g} s; if that is no wonder there, set "
                "`lease` to more"
            )
            driver.post(Failed(at=now, attempt=attempt.id, failure=as_failure(WorkerLost(message))))
            driver.jobs.cancel(name, attempt.id)


def _most(worker: Worker | None, kind: Kind, thinks: float, calls: float) -> float | None:
    """Return the seconds that a worker may say nothing of a step; `None` if it ends silent calls itself."""
    if kind == "think":
        return thinks
    return calls if getattr(worker, "lease", None) is None else None
