"""Python's garbage collector while runs are under way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from plait import AsyncOrchestrator, Join, Plan, Step, ToolCall, tool
from plait.machine import Node
from plait.runtime.driver import garbage_collection
from plait.runtime.driver.garbage_collection import FREEZE_PLAN_STEPS, THRESHOLDS, Collector

seen: list[tuple[tuple[int, int, int], bool]] = []


@tool
async def look() -> None:
    """Note how the collector is set."""
    seen.append((gc.get_threshold(), gc.get_freeze_count() > 0))


@pytest.fixture(autouse=True)
def pythons_own() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    seen.clear()
    yield (700, 10, 10)
    gc.set_threshold(*before)
    assert garbage_collection._running == 0 and gc.get_freeze_count() == 0


def fan(size: int) -> Plan:
    names = [f"m{i}" for i in range(size)]
    first = Step(name="first", op=Join(on_failure="any-end"))
    steps = [
        Step(name=each, op=ToolCall(tool="look") if i == 0 else Join(), needs=("first",))
        for i, each in enumerate(names)
    ]
    return Plan(steps=(first, *steps, Step(name="last", op=Join(), needs=tuple(names))), output="last")


@pytest.mark.parametrize(("size", "frozen"), [(3, False), (FREEZE_PLAN_STEPS, True)])
async def test_it_is_called_less_often_while_a_run_is_under_way_and_leaves_a_large_plan_out(
    size: int, frozen: bool, pythons_own: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collection, "THAW_DELAY_S", 0.05)
    async with AsyncOrchestrator(workers=[], tools=[look], journal="off") as orchestrator:
        assert gc.get_threshold() == pythons_own
        assert (await orchestrator.run(plan=fan(size))).status == "done"
        assert seen == [(THRESHOLDS, frozen)]
        assert gc.get_threshold() == pythons_own and gc.isenabled()
        assert (gc.get_freeze_count() > 0) is frozen
        if frozen:
            async with asyncio.timeout(300):
                while gc.get_freeze_count():
                    await asyncio.sleep(0.01)


async def test_a_setting_leaves_it_alone(pythons_own: tuple[int, int, int]) -> None:
    async with AsyncOrchestrator(workers=[], tools=[look], journal="off", collector=False) as orchestrator:
        await orchestrator.run(plan=fan(FREEZE_PLAN_STEPS))
    assert seen == [(pythons_own, False)]


async def test_what_an_application_sets_meanwhile_stays() -> None:
    loop = asyncio.get_running_loop()
    one, other = Collector(loop), Collector(loop)
    one.began("a")
    other.began("b")
    one.ended("a")
    assert gc.get_threshold() == THRESHOLDS
    gc.set_threshold(123, 4, 5)
    other.close()
    assert gc.get_threshold() == (123, 4, 5)


async def test_an_application_that_does_without_it_or_freezes_by_itself_is_left_alone() -> None:
    each = Collector(asyncio.get_running_loop())
    gc.disable()
    try:
        each.began("a")
        each.entered("a", FREEZE_PLAN_STEPS)
        assert gc.get_threshold() == (700, 10, 10) and gc.get_freeze_count() == 0
        each.close()
    finally:
        gc.enable()
    gc.freeze()
    each.began("b")
    each.entered("b", FREEZE_PLAN_STEPS)
    each.close()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


async def test_the_records_of_a_run_that_has_ended_go_without_it() -> None:
    def kept() -> int:
        return sum(type(each) is Node for each in gc.get_objects())

    async with AsyncOrchestrator(workers=[], tools=[look], journal="off") as orchestrator:
        gc.collect()
        before = kept()
        gc.disable()
        try:
            for _ in range(5):  # the machine holds the last one until its next event
                assert (await orchestrator.run(plan=fan(3))).status == "done"
            assert kept() - before <= 5
        finally:
            gc.enable()


async def test_what_a_server_is_made_of_stays_left_out_after_a_large_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "THAW_DELAY_S", 0.05)
    monkeypatch.setattr(garbage_collection, "_settled", False)
    try:
        garbage_collection.settle()
        settled = gc.get_freeze_count()
        assert settled > 10_000
        async with AsyncOrchestrator(workers=[], tools=[look], journal="off") as orchestrator:
            assert (await orchestrator.run(plan=fan(FREEZE_PLAN_STEPS))).status == "done"
            assert garbage_collection._frozen == 1 and gc.get_freeze_count() > settled + FREEZE_PLAN_STEPS
            async with asyncio.timeout(300):
                while garbage_collection._frozen:
                    await asyncio.sleep(0.01)
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
