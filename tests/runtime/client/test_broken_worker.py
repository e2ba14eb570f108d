"""A worker that breaks of whatever it is asked: why is said once, in the error, the journal and `plait why`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator
from plait.core.errors import WorkerLost
from plait.core.events import Job, WorkerDown
from plait.core.result import as_failure
from plait.runtime.journal.journal import Journal
from plait.workers.scripted import Reply, Scripted

REASON = "the engine 'w' broke: ValueError: head size 16"


class Breaks(Scripted):
    """As an engine that fails at its first step, and is gone then."""

    def __init__(self) -> None:
        super().__init__([Reply(text="never")], name="w")
        self.lost, self.tries, self._broken = "", 0, asyncio.Event()

    async def run(self, job: Job) -> AsyncIterator[Any]:  # type: ignore[override]
        self.tries += 1
        self.lost = REASON
        self._broken.set()
        yield as_failure(WorkerLost(self.lost))

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await self._broken.wait()


async def test_an_engine_that_breaks_says_why_and_is_not_tried_again(tmp_path: Path) -> None:
    worker = Breaks()
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path / "j.db") as plait:
        answer = await plait.run("Why?")
        other = await plait.run("And now?")
    assert answer.status == other.status == "failed" and answer.failure and other.failure
    assert REASON in answer.failure.message and REASON in other.failure.message
    assert worker.tries <= 2, "what breaks of everything is not tried four times"
    events = list(Journal(tmp_path / "j.db").events())
    assert REASON in [event.reason for event in events if isinstance(event, WorkerDown)]
