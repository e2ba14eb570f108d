"""What a request costs besides its work: no task, no generator and no wake-up of the loop of its own. Exact counts."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget, Join, ModelCall, Plan, Step
from plait.core import Result, Text
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import Plugin
from plait.core.result import Usage
from plait.workers import engine as engine_module
from plait.workers._shared.batch_streams import Inbox
from plait.workers._shared.prompt import Prompter
from plait.workers.engine import Engine
from plait.workers.engine.requests import EngineOutputs, EngineRequest
from plait.workers.ray import RayWorker
from plait.workers.ray.actor import ActorHost
from tests.workers.test_begin import Letters

PIECES = 3


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the tasks that are made, the wake-ups of the loop by engines' threads, and the async generators that
    begin."""
    loop, counts = asyncio.get_running_loop(), Counter[str]()
    wake, hooks = loop.call_soon_threadsafe, sys.get_asyncgen_hooks()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        counts["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **more)

    def woken(callback: Any, *args: Any, **more: Any) -> Any:
        counts["wake-ups"] += isinstance(getattr(callback, "__self__", None), Inbox)
        return wake(callback, *args, **more)

    def begun(generator: Any) -> None:
        counts["generators"] += 1
        if hooks.firstiter is not None:
            hooks.firstiter(generator)

    loop.set_task_factory(make)
    loop.call_soon_threadsafe = woken
    sys.set_asyncgen_hooks(begun, hooks.finalizer)
    try:
        yield counts
    finally:
        loop.set_task_factory(None)
        del loop.call_soon_threadsafe
        sys.set_asyncgen_hooks(*hooks)


class Core:
    """In the place of vLLM: waits for `together` requests, then ends them all in `PIECES` steps."""

    block = blocks = 1
    cached = process = on_prompt_end = None
    together = 0

    def __init__(self, *_: Any) -> None:
        self.running: dict[str, EngineRequest] = {}
        self.counts = {"steps": 0}
        self.prompter = Prompter(Letters(None))

    def order(self, job: Job, think: ModelCall, key: str, report: Any) -> EngineRequest:
        return EngineRequest(key, report, self.prompter.ids(think), think.sampling, bool(think.stream))

    def add(self, order: EngineRequest, news: EngineOutputs) -> None:
        self.running[order.key] = order

    def step(self, news: EngineOutputs) -> None:
        if len(self.running) < Core.together:
            return
        self.counts["steps"] += 1
        for key, order in list(self.running.items()):
            order.reported += 1
            if order.streams:
                news.append((order.stream, Progress("x", 1)))
            if order.reported == PIECES:
                del self.running[key]
                news.append((order.stream, Result(value="xxx", usage=Usage(completion=PIECES))))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_of_the_engine_makes_no_task_and_no_wake_up(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(engine_module, "Core", Core)
    worker = Engine("model", slots=256)

    def plan(count: int) -> Plan:
        op = ModelCall(prompt=(Text(text="?"),), stream=stream)
        steps = [Step(name=f"s{n}", op=op) for n in range(count)]
        both = Step(name="all", op=Join(merge=Plugin(name="collect")), needs=tuple(step.name for step in steps))
        return Plan(steps=(*steps, both), output="all", budget=Budget(width=256))

    seen: list[Counter[str]] = []
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        for count in (8, 8, 80):
            monkeypatch.setattr(Core, "together", count)
            with counted() as counts:
                answer = await orchestrator.run(plan=plan(count))
            assert answer.value == ["xxx"] * count
            seen.append(counts)
    _, few, many = seen
    assert few["tasks"] == many["tasks"] and few["generators"] == many["generators"]
    # The thread hands over a step's output at once, whatever the number of requests, and only where there is any; what
    # the loop has not taken yet goes with the next.
    assert 1 <= few["wake-ups"] <= (PIECES if stream else 1) >= many["wake-ups"] >= 1


class Actor:
    """In the place of Ray's: answers each call with the ends of its jobs."""

    def __init__(self) -> None:
        self.calls = 0
        self.exchange = SimpleNamespace(remote=self._exchange)

    def _exchange(self, number: int, jobs: Sequence[Job], given_up: Sequence[int]) -> asyncio.Future[Any]:
        self.calls += 1
        reply = asyncio.get_running_loop().create_future()
        reply.set_result([(job.attempt, Result(value="x")) for job in jobs])
        return reply


def job(attempt: int) -> Job:
    return Job(attempt=attempt, run="r", step=f"r:{attempt}", op=ModelCall(prompt=(Text(text="?"),)))


@pytest.mark.parametrize("count", [1, 64])
async def test_the_jobs_of_a_turn_go_to_an_actor_in_one_call_with_one_task(count: int) -> None:
    worker = RayWorker("plait.workers.scripted:Scripted", {"replies": [{"text": "x"}]})
    worker._actor = actor = Actor()
    seen: list[Any] = []
    with counted() as counts:
        for attempt in range(count):
            worker.begin(job(attempt), seen.append)
        await asyncio.sleep(0)
        (reply,) = worker._replies
        for attempt, end in await reply:
            worker._live[attempt].push(end)
    assert seen == [Result(value="x")] * count and not worker._live
    assert actor.calls == 1 and counts == Counter(tasks=1)


@pytest.mark.parametrize("count", [1, 64])
async def test_an_actor_begins_its_jobs_without_tasks(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(engine_module, "Core", Core)
    monkeypatch.setattr(Core, "together", count)
    host = ActorHost("plait.workers.engine:Engine", {"model": "model", "slots": 256})
    await host.start()
    await asyncio.sleep(0)  # what follows the cache has begun
    with counted() as counts:
        replies = await host.exchange(0, [job(attempt) for attempt in range(count)])
        for number in range(1, 1000):
            if len(replies) == count:
                break
            replies += await host.exchange(number)
    assert len(replies) == count and counts["tasks"] == counts["generators"] == 0 and counts["wake-ups"] == 1
    assert not host._live and not host._tasks
    await host.close()
