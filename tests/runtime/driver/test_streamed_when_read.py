"""A model call streams if a follower, a policy or a reader of the plan reads its text. Otherwise no text is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from plait import AsyncOrchestrator, Policy
from plait.core.errors import UsageError
from plait.core.events import Job, Progressed
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result
from plait.workers.scripted import Reply, Scripted

WORDS = " ".join(f"word{i}" for i in range(40))


class Noting(Scripted):
    """Notes which jobs stream."""

    def __init__(self) -> None:
        super().__init__([Reply(text=WORDS)])
        self.streams: list[bool] = []
        self.deltas = 0

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Answer a job."""
        assert isinstance(job.op, ModelCall)
        self.streams.append(bool(job.op.stream))
        async for item in super().run(job):
            self.deltas += isinstance(item, Progress)
            yield item


class Reading(Policy):
    """Reads text while it is written."""

    needs_stream: ClassVar[bool] = True
    read: ClassVar[list[str]] = []

    def review(self, event: object, view: object) -> list[object]:
        """Note the text of an event."""
        if isinstance(event, Progressed):
            self.read.append(event.text)
        return []


@pytest.mark.parametrize("planner", ["single", "sample:n=3"])
async def test_text_that_nobody_reads_is_no_event(planner: str) -> None:
    worker = Noting()
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        answer = await plait.run("go", planner=planner)
        handle = await plait.submit("go", planner=planner)
        assert (await handle).value == answer.value == WORDS
    assert not any(worker.streams) and worker.deltas == 0


@pytest.mark.parametrize("planner", ["single", "sample:n=3"])
async def test_a_follower_gets_the_text_while_it_is_written(planner: str) -> None:
    worker = Noting()
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        texts = [event.text async for event in plait.stream("go", planner=planner, modes=["text"])]
    assert all(worker.streams) and len(texts) >= 2 and worker.deltas >= 3
    if planner == "single":
        assert "".join(texts) == WORDS


async def test_a_policy_reads_text_unless_the_call_forbids_it() -> None:
    worker = Noting()
    Reading.read.clear()
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        await plait.run("go", policies=[Reading])
        assert worker.streams == [True]
        assert "".join(Reading.read) == WORDS
        with pytest.raises(UsageError, match=r"answer\.stream=false"):
            await plait.run("go", planner="single:answer.stream=false", policies=[Reading])
