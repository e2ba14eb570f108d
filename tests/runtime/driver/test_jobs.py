"""Workers that call back rather than be iterated, and what tools see of who submitted their run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator

import pytest

from plait import AsyncOrchestrator, Join, Plan, Step, ToolCall, tool
from plait.core.events import Job
from plait.core.interfaces import Progress, Tell, Worker, direct
from plait.core.result import Failure, Result, Usage
from plait.workers.tools import Tools

caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


class Calling(Worker):
    """Tells what it was made with, at once or a moment later."""

    name = "calling"
    slots = 2
    serves = ("think",)

    def __init__(self, *said: Progress | Result | Failure | Exception, later: bool = False) -> None:
        self.said = said
        self.later = later

    async def start(self) -> None:
        pass

    def begin(self, job: Job, tell: Tell) -> None:
        for item in self.said:
            if isinstance(item, Exception):
                raise item
            if self.later:
                asyncio.get_running_loop().call_soon(tell, item)
            else:
                tell(item)

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        raise AssertionError("it has a better way")
        yield Result()

    async def cancel(self, attempt: int) -> None:
        pass

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("later", [False, True])
async def test_a_worker_that_calls_back_is_heard_once(later: bool) -> None:
    end = Result(value="answer: 4", usage=Usage(completion=2))
    worker = Calling(
        Progress("answer: "), Progress("4"), end, Result(value="a second end"), Progress("more"), later=later
    )
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        assert [(await orchestrator.run("2 + 2?")).answer for _ in range(3)] == ["4"] * 3
        assert orchestrator._driver is not None and len(orchestrator._driver.jobs) == 0


@pytest.mark.parametrize("said", [ValueError("broken"), Failure(kind="EngineError", message="broken")])
async def test_what_a_worker_that_calls_back_raises_or_says_of_its_failure_fails_the_step_alone(
    said: Exception,
) -> None:
    async with AsyncOrchestrator(workers=[Calling(said)], journal="off") as orchestrator:
        answer = await asyncio.wait_for(orchestrator.run("?"), 300)
        assert answer.status == "failed" and answer.failure is not None and "broken" in answer.failure.message


async def test_closing_does_not_wait_for_a_worker_that_never_tells() -> None:
    async with AsyncOrchestrator(workers=[Calling()], journal="off") as orchestrator:
        handle = await orchestrator.submit("?")
        await asyncio.sleep(0)
        assert orchestrator._driver is not None
        orchestrator._driver.machine._slots.cancel_timeout = 0.05  # type: ignore[attr-defined]
    assert (await handle).status == "cancelled"


def test_a_subclass_that_overrides_run_alone_is_run() -> None:
    class Counted(Tools):
        async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
            async for item in super().run(job):
                yield item

    class Again(Counted):
        def begin(self, job: Job, tell: Tell) -> None:
            super().begin(job, tell)

    assert direct(Tools()) is not None and direct(Again()) is not None
    assert direct(Counted()) is None


async def test_tools_see_the_variables_of_who_submitted_their_run_and_of_no_other_tool() -> None:
    @tool
    async def seen() -> str:
        """Return who called, and try to change it for others."""
        before = caller.get()
        caller.set("a tool")
        return before

    names = [f"s{i}" for i in range(8)]
    steps = [
        Step(name=name, op=ToolCall(tool="seen"), needs=names[i - 1 : i] if i % 2 else ())
        for i, name in enumerate(names)
    ]
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(names))), output="all")

    async def run(name: str) -> object:
        caller.set(name)
        return (await orchestrator.run(plan=plan)).value

    async with AsyncOrchestrator(workers=[], tools=[seen], journal="off") as orchestrator:
        values = await asyncio.gather(*(asyncio.create_task(run(name)) for name in ("a", "b", "c")))
    assert values == [[name] * 8 for name in ("a", "b", "c")]
