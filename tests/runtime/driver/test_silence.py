"""A job of which a worker says nothing more is given up by default, and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plait import AsyncOrchestrator
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.result import Failure, Result
from plait.runtime.driver import silence
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted


class Forgets(Scripted):
    """Forgets the first job that it is given, after its first words."""

    first = True
    cancelled = 0

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        if self.first:
            self.first = False
            yield Progress(text="answer", tokens=1)
            await asyncio.Event().wait()
        async for item in super().run(job):
            yield item

    async def cancel(self, attempt: int) -> None:
        self.cancelled += 1
        await super().cancel(attempt)


async def test_a_silent_step_is_lost_and_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(silence, "SILENCE", 0.3)
    worker, path = Forgets([Reply(text="answer: 4")]), tmp_path / "j.plait"
    async with AsyncOrchestrator(workers=[worker], journal=path) as plait:
        answer = await asyncio.wait_for(plait.run("2 + 2?"), 300)
    assert answer.answer == "4" and worker.cancelled == 1
    (step,) = answer.trace
    assert step.tries == 2
    assert replay(path, Plugins(), check=True).divergence is None


async def test_a_step_that_says_something_now_and_then_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE", 1.0)
    worker = Scripted([Reply(text=" ".join(["word"] * 20), tokens_per_second=10)])
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        answer = await plait.run("go")
    assert answer.status == "done" and answer.trace[0].tries == 1
