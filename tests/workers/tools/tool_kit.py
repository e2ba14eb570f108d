"""What the tests of the tools worker share: jobs for it, and their one end."""

from __future__ import annotations

from typing import Any

from plait.core.events import Job
from plait.core.ops import ToolCall
from plait.core.result import Failure, Result
from plait.core.tools.tool import tool
from plait.workers.tools import Tools


def job(name: str, attempt: int = 1, **args: Any) -> Job:
    return Job(attempt=attempt, run="r", step="r:s", op=ToolCall(tool=name, args=args))


async def last(worker: Tools, a_job: Job) -> Result | Failure:
    items = [item async for item in worker.run(a_job)]
    assert len(items) == 1
    assert isinstance(items[0], Result | Failure)
    return items[0]


async def call(fn: Any, **args: Any) -> Result | Failure:
    made = tool(name="f")(fn)
    worker = Tools([made])
    await worker.start()
    try:
        return await last(worker, job("f", **args))
    finally:
        await worker.close()
