"""Prompts that kill the actor that runs them, and jobs that cannot be sent: without Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core import ModelCall, Sampling
from plait.core.events import Job
from plait.core.result import Failure, Result
from plait.workers.ray import Quarantine, RayWorker


def asking(prompt: str, attempt: int = 1, seed: int | None = None) -> Job:
    return Job(attempt=attempt, run="r", step=f"r:{attempt}", op=ModelCall(prompt=prompt, sampling=Sampling(seed=seed)))


def test_a_prompt_that_was_alone_at_two_deaths_is_not_run_again() -> None:
    quarantine = Quarantine()
    quarantine.died([asking("bad")])
    assert quarantine.refusal(asking("bad")) is None, "once may be chance"
    quarantine.died([asking("bad", 2, seed=7), asking("good")], reason="the engine broke: head size 16")
    refusal = quarantine.refusal(asking("bad", 3))
    assert refusal is not None and not refusal.retryable and not refusal.lost and "each time" in refusal.message
    assert "(the last time: the engine broke: head size 16)" in refusal.message, "why it broke is not thrown away"
    assert quarantine.refusal(asking("good")) is None
    assert quarantine.refusal(asking("bad"), now=time.monotonic() + 4000) is None, "for an hour"


def test_of_several_suspects_the_guilty_is_found_by_running_them_alone() -> None:
    quarantine, both = Quarantine(), [asking("bad"), asking("good")]
    quarantine.died(both)
    assert all(quarantine.turn(each) is None for each in both)
    quarantine.died(both)
    assert all(quarantine.refusal(each) is None for each in both)
    assert quarantine.turn(both[0]) is quarantine.turn(both[1]) is not None
    assert quarantine.turn(asking("new")) is None
    quarantine.cleared(both[1])
    assert quarantine.turn(both[1]) is None
    quarantine.died([both[0], asking("new")])
    assert quarantine.refusal(both[0]) is not None and quarantine.refusal(asking("new")) is None


def test_deaths_an_hour_apart_say_nothing() -> None:
    quarantine = Quarantine()
    quarantine.died([asking("long")], now=0.0)
    quarantine.died([asking("long")], now=4000.0)
    assert quarantine.refusal(asking("long"), now=4000.0) is None


class Mortal:
    """An actor in place of Ray's: it dies of a prompt."""

    def __init__(self) -> None:
        self.dead: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.news: list[Any] = []
        self.waiter: asyncio.Future[Any] | None = None
        for name in ("exchange", "watch", "answers"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))

    def _exchange(self, number: int, jobs: Sequence[Job], given_up: Sequence[int]) -> asyncio.Future[Any]:
        earlier, self.waiter = self.waiter, asyncio.get_running_loop().create_future()
        if earlier is not None and not earlier.done():
            earlier.set_result([])
        for each in jobs:
            assert isinstance(each.op, ModelCall)
            if each.op.prompt == ModelCall(prompt="bad").prompt:
                self.waiter.set_exception(RuntimeError("the actor died"))
                return self.waiter
        if jobs:
            self.waiter.set_result([(each.attempt, Result(value="fine")) for each in jobs])
        return self.waiter

    def _watch(self) -> asyncio.Future[Any]:
        return self.dead

    async def _answers(self) -> None:
        pass


async def test_a_prompt_that_kills_engines_does_not_end_a_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine, made = Quarantine(), 0

    async def make(worker: RayWorker) -> None:
        nonlocal made
        made += 1
        worker._actor, worker._calls = Mortal(), 0

    monkeypatch.setattr(RayWorker, "_make", make)
    fleet = [RayWorker("plait.workers.scripted:Scripted", {"replies": [{"text": "x"}]}, restarts=3) for _ in range(2)]
    for worker in fleet:
        worker._quarantine, worker._ray = quarantine, SimpleNamespace(kill=lambda actor: None)
        worker._gone = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
        await worker._make()
        worker._follower = asyncio.create_task(worker._follow())
    ends: list[Any] = []
    for attempt in range(6):
        worker = fleet[attempt % 2]
        async with asyncio.timeout(300):
            while worker._actor is None:
                await asyncio.sleep(0.01)
            ends += [item async for item in worker.run(asking("bad", attempt))]
    assert [end.lost for end in ends] == [True, True, False, False, False, False]
    assert made == 4, "each engine was made again once"
    async with asyncio.timeout(300):
        for worker in fleet:
            while worker._actor is None:
                await asyncio.sleep(0.01)
            assert [item async for item in worker.run(asking("good", 9))] == [Result(value="fine")]
    for worker in fleet:
        assert worker._follower is not None
        worker._follower.cancel()
        await asyncio.gather(worker._follower, return_exceptions=True)


async def test_a_job_that_cannot_be_sent_does_not_take_its_batch_with_it() -> None:
    sent: list[Any] = []

    class Actor:
        class exchange:  # noqa: N801
            @staticmethod
            def remote(number: int, jobs: Sequence[Job] = (), given_up: Sequence[int] = ()) -> asyncio.Future[Any]:
                if any(each.attempt == 2 for each in jobs):
                    raise TypeError("cannot pickle this")
                sent.extend(each.attempt for each in jobs)
                reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                reply.set_result([])
                return reply

    worker = RayWorker("plait.workers.scripted:Scripted", {"replies": [{"text": "x"}]})
    worker._actor = Actor()
    streams = [asyncio.ensure_future(anext(aiter(worker.run(asking("x", attempt))))) for attempt in (1, 2, 3)]
    end = await asyncio.wait_for(streams[1], 300)
    assert isinstance(end, Failure) and "cannot pickle this" in end.message
    assert sent == [1, 3]
    for each in (streams[0], streams[2]):
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
