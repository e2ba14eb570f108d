"""Gives up model steps of which nothing was heard for long: a worker may forget a job and yet be well otherwise.

What it says is an event like any other, so a replay needs no clock. Calls of tools are left alone: some take hours, and
their worker gives each a timeout or a lease.
"""

from __future__ import annotations

import asyncio

from ...core.errors import WorkerLost
from ...core.events import Failed
from ...core.result import as_failure
from .driver import Driver

SILENCE = 900.0
"""Seconds without any news of a model step, after which it is taken for lost."""


async def watch(driver: Driver, seconds: float) -> None:
    """Look again and again for attempts that have been silent for so many seconds, until cancelled."""
    while True:
        await asyncio.sleep(seconds / 10)
        now = driver.now()
        for attempt in list(driver.machine.attempts.values()):
            thinks = attempt.node.step.op.kind == "think"
            if not thinks or attempt.state != "live" or now - attempt.heartbeat < seconds:
                continue
            worker = attempt.worker.name
            message = (
                f"worker {worker} has said nothing about this step for {seconds:g} s; if that is no wonder there, set "
                "`lease` to more"
            )
            driver.post(Failed(at=now, attempt=attempt.id, failure=as_failure(WorkerLost(message))))
            driver.jobs.cancel(worker, attempt.id)
