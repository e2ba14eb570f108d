"""A job of which a worker says nothing more is given up by default, and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Plan, Step, ToolCall
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.result import Failure, Result
from plait.core.tools.tool import tool
from plait.runtime.client import client
from plait.runtime.driver import jobs
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants


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
    monkeypatch.setattr(client, "MODEL_SILENCE_LIMIT_S", 0.3)
    worker, path = Forgets([Reply(text="answer: 4")]), tmp_path / "j.plait"
    async with AsyncOrchestrator(workers=[worker], journal=path) as plait:
        answer = await asyncio.wait_for(plait.run("2 + 2?"), 300)
    assert answer.answer == "4" and worker.cancelled == 1
    (step,) = answer.trace
    assert step.tries == 2
    assert replay(path, Plugins(), check=check_invariants).divergence is None


class NeverAnswers(Worker):
    """A worker of a user's own in the place of `Tools`, with nothing but the methods: it says and obeys nothing."""

    name, slots, serves = "tools", 1, ("call",)

    def __init__(self) -> None:
        self.begun = 0
        self._free = asyncio.Event()

    async def start(self) -> None:
        pass

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        self.begun += 1
        await self._free.wait()
        yield Result(value="late")

    async def cancel(self, attempt: int) -> None:
        await self._free.wait()

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await self._free.wait()

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_a_worker_of_calls_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends in words, and so does the session, although the worker does not even close."""
    monkeypatch.setattr(client, "CALL_SILENCE_LIMIT_S", 0.2)
    monkeypatch.setattr(jobs, "CLOSE_TIMEOUT_S", 0.05)
    worker, path = NeverAnswers(), tmp_path / "j.plait"
    plan = Plan(steps=(Step(name="a", op=ToolCall(tool="look")),), output="a")
    look = tool(name="look")(lambda: "seen")
    async with AsyncOrchestrator(workers=[worker], tools=[look], journal=path) as plait:
        answer = await asyncio.wait_for(plait.run(plan=plan, retries={"lost": 1}), 300)
    assert answer.status == "failed" and answer.failure is not None
    assert "worker tools has reported nothing about this step for 0.2 s" in answer.failure.message
    assert worker.begun == 2
    assert "tools could not be closed" in caplog.text
    assert replay(path, Plugins(), check=check_invariants).divergence is None


async def test_a_step_that_says_something_now_and_then_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MODEL_SILENCE_LIMIT_S", 1.0)
    worker = Scripted([Reply(text=" ".join(["word"] * 20), tokens_per_second=10)])
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        answer = await plait.run("go", planner="single:answer.stream=true")
    assert answer.status == "done" and answer.trace[0].tries == 1
