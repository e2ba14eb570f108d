"""Whether a cluster can hold what is asked of it, and how an actor is watched: without Ray."""

from __future__ import annotations

import asyncio
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import WorkerError
from plait.workers.ray import RayWorker
from plait.workers.ray.actor import Pulse, hangs
from plait.workers.ray.cluster import Placement, default_gpus, missing


class Group:
    """A placement group that finds room at once, or never."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def wait(self, seconds: float) -> bool:
        return self.there


class FakeRay:
    """A cluster of nodes with these resources, which keeps account of the placement groups made on it."""

    def __init__(self, *nodes: dict[str, float], dead: int = 0, busy: bool = False) -> None:
        self._nodes, self._dead = nodes, dead
        self.made: list[list[dict[str, float]]] = []
        self.removed = 0
        self.util = SimpleNamespace(placement_group=self._make, remove_placement_group=self._remove)
        self._busy = busy

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": i >= self._dead, "Resources": node} for i, node in enumerate(self._nodes)]

    def _make(self, bundles: list[dict[str, float]], strategy: str) -> Group:
        self.made.append(bundles)
        return Group(not self._busy)

    def _remove(self, group: Group) -> None:
        self.removed += 1


SMALL, LARGE, GPU = {"CPU": 2.0}, {"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("nodes", "wanted", "count", "said"),
    [
        ([SMALL, LARGE], {"CPU": 8.0}, 1, None),
        ([SMALL, LARGE], {"CPU": 2.0, "GPU": 0.0}, 5, None),
        ([SMALL, LARGE], {"CPU": 9.0}, 1, "no node of the Ray cluster has 9 CPU: the largest has 8 CPU"),
        ([SMALL, LARGE], {"CPU": 1.0, "GPU": 1.0}, 1, "no node .* has 1 CPU, 1 GPU: the largest has 8 CPU, 0 GPU"),
        ([SMALL, LARGE], {"CPU": 3.0}, 3, "room for 2 of 3 actors with 3 CPU each: its nodes have 2 CPU; 8 CPU"),
        ([GPU, GPU], {"CPU": 1.0, "GPU": 0.5}, 8, None),
        ([GPU, GPU], {"CPU": 1.0, "GPU": 0.5}, 9, "room for 8 of 9"),
        ([GPU, GPU], {"CPU": 0.1, "GPU": 0.1}, 40, None),
        ([SMALL], {"TPU": 1.0}, 1, "no node .* has 1 TPU: the largest has 0 TPU"),
        ([SMALL], {"CPU": 0.0}, 100, None),
        ([], {"CPU": 1.0}, 1, "the largest has 0 CPU"),
    ],
)
def test_what_is_missing_is_said_in_numbers(
    nodes: list[dict[str, float]], wanted: dict[str, float], count: int, said: str | None
) -> None:
    found = missing(FakeRay(*nodes), wanted, count)
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(said, found)


def test_dead_nodes_have_no_room() -> None:
    assert missing(FakeRay(LARGE, SMALL, dead=1), {"CPU": 4.0}) is not None
    assert default_gpus(FakeRay(GPU, SMALL, dead=1)) == 0


def test_an_engine_has_a_gpu_where_there_are_some() -> None:
    assert default_gpus(FakeRay(SMALL, GPU)) == 1
    assert default_gpus(FakeRay(SMALL, LARGE)) == 0


@pytest.mark.parametrize(
    ("strategy", "count", "fits"),
    [
        ("PACK", 5, True),
        ("spread", 5, True),
        ("PACK", 6, False),
        ("strict-pack", 4, True),
        ("strict-pack", 5, False),
        ("STRICT_SPREAD", 2, True),
        ("STRICT_SPREAD", 3, False),
    ],
)
async def test_room_that_there_can_never_be_is_not_asked_for(strategy: str, count: int, fits: bool) -> None:
    ray = FakeRay(SMALL, LARGE)
    placement = Placement([{"CPU": 2.0, "GPU": None}] * count, strategy)
    if fits:
        await placement.take(ray, 5)
        assert ray.made == [[{"CPU": 2.0}] * count]
        await placement.free(ray)
        assert ray.removed == 1
        return
    with pytest.raises(WorkerError, match=rf"no room for {count} actors with 2 CPU each.*have 2 CPU; 8 CPU"):
        await placement.take(ray, 5)
    assert not ray.made


async def test_room_that_others_hold_is_asked_for_and_given_up() -> None:
    ray = FakeRay(GPU, GPU, busy=True)
    placement = Placement([{"CPU": 1.0, "GPU": None}] * 2, "STRICT_SPREAD")
    with pytest.raises(WorkerError, match=r"1 CPU, 1 GPU each, placed by STRICT_SPREAD, within 5 s"):
        await placement.take(ray, 5)
    assert ray.made == [[{"CPU": 1.0, "GPU": 1.0}] * 2]
    assert ray.removed == 1


class FakeActor:
    """An actor that answers at once, has no news and never ends."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda: self._reply(name))

    async def _reply(self, name: str) -> None:
        await (asyncio.sleep(0) if name == "answers" else asyncio.get_running_loop().create_future())


@pytest.mark.parametrize("turns", range(12))
async def test_following_an_actor_can_be_given_up_at_any_moment(turns: int) -> None:
    worker = RayWorker("plait.workers.scripted:Scripted", {"replies": [{"text": "x"}]}, silence=60.0)
    worker._actor = FakeActor()
    worker._gone = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
    reading = asyncio.create_task(worker._read())
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=300)
    assert done and reading.cancelled()


async def test_an_actor_is_asked_twice_before_it_counts_as_hung() -> None:
    asked: list[float] = []

    async def silent() -> None:
        asked.append(asyncio.get_running_loop().time())
        await asyncio.get_running_loop().create_future()

    assert "not answered for 0.1 s" in await hangs(SimpleNamespace(answers=SimpleNamespace(remote=silent)), 0.1)
    assert len(asked) == 2


async def test_an_engine_is_asked_at_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.workers.ray.actor.LEAST", 0.2)
    turns = iter(range(3))

    async def stops() -> None:
        if next(turns, None) is None:
            await asyncio.get_running_loop().create_future()

    actor = SimpleNamespace(answers=SimpleNamespace(remote=stops))
    said = await asyncio.wait_for(hangs(actor, 4.0, by_pace=True), 300)
    assert said.startswith("it has not answered for 0.2"), "and not for four seconds"


async def test_an_engine_that_makes_no_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.workers.ray.actor.STEP_TIMEOUT_S", 0.2)
    steps = iter([1, 2, 3])

    async def answers() -> Pulse:
        return Pulse(busy=True, steps=next(steps, 3))

    actor = SimpleNamespace(answers=SimpleNamespace(remote=answers))
    assert "has requests and has made no step for 0.2 s" in await asyncio.wait_for(hangs(actor, 0.4), 300)


async def test_room_that_comes_when_its_start_was_given_up_is_given_back() -> None:
    ray = FakeRay(SMALL, LARGE)
    found = threading.Event()
    make = ray.util.placement_group

    def slow(*args: Any, **options: Any) -> Any:
        found.wait(10)
        return make(*args, **options)

    ray.util.placement_group = slow
    placement = Placement([{"CPU": 1.0, "GPU": None}] * 2, "PACK")
    starts = [asyncio.create_task(placement.take(ray, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    for start in starts:
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)
    found.set()
    async with asyncio.timeout(300):
        while not ray.removed:
            await asyncio.sleep(0.01)
    assert ray.removed == len(ray.made) == 1
