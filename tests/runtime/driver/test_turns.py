"""The event loop has its turns while many requests, or one of many steps, are taken in."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Step
from plait.runtime.client import client
from plait.runtime.driver import event_pump
from plait.workers.scripted import Reply, Scripted


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[list[int]]:
    """Count the turns that the loop takes."""
    taken = [0]

    async def count() -> None:
        while True:
            taken[0] += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(count())
    yield taken
    task.cancel()


async def test_many_submits_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOP_SLICE_S", 0.0)
    worker = Scripted([Reply(text="fine", delay=5)])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator, turns() as taken:
        await orchestrator.submit("go")
        before = taken[0]
        await asyncio.gather(*(orchestrator.submit("go") for _ in range(200)))
        assert taken[0] - before >= 200


def wide(n: int) -> Plan:
    names = tuple(f"t{i}" for i in range(n))
    steps = (Step(name=name, op=ModelCall(prompt="x")) for name in names)
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=names)), output="all")


@pytest.mark.parametrize("large", [50, 10**6])
async def test_a_large_plan_is_taken_in_beside_the_loop(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(event_pump, "OFFLOAD_PLAN_STEPS", large)
    monkeypatch.setattr(event_pump, "LOOP_SLICE_S", 0.0)
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")], slots=300)], journal="off") as orchestrator:
        async with turns() as taken:
            answer = await orchestrator.run(plan=wide(200))
            assert taken[0] > 200, "actions are carried out one in a turn"
    assert answer.value == ["fine"] * 200


@pytest.mark.parametrize("votes", [1, 8])
async def test_long_votes_are_counted_beside_the_loop(monkeypatch: pytest.MonkeyPatch, votes: int) -> None:
    """The end of a step that closes joins over many branches, one after another, is handled on a thread."""
    threads = list[int]()
    handled = event_pump.Pump._handle_large

    def seen(self: event_pump.Pump, event: Any) -> Any:
        threads.append(threading.get_ident())
        return handled(self, event)

    monkeypatch.setattr(event_pump, "OFFLOAD_READ_CHARS", 500)
    monkeypatch.setattr(event_pump.Pump, "_handle_large", seen)
    needs = tuple(f"j{at}" for at in range(votes))
    joins = (Step(name=f"j{at}", op=Join(), needs=("s", *needs[:at])) for at in range(votes))
    plan = Plan(steps=(Step(name="s", op=ModelCall(prompt="x")), *joins), output=needs[-1])
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")])], journal="off") as orchestrator:
        assert (await orchestrator.run(plan=plan)).status == "done"
    assert len(threads) == (votes > 1) and threading.get_ident() not in threads
