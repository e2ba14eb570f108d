"""A process that lives long stays as large as it was: what a request brings along goes with it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.interfaces import Merge, Policy
from plait.core.task import Task
from plait.workers.scripted import Reply, Scripted


def classes() -> int:
    """How many classes of plugins there are."""

    def under(cls: type) -> int:
        return sum(1 + under(each) for each in cls.__subclasses__())

    gc.collect()
    return sum(under(each) for each in (Task, Policy, Merge))


def closures(i: int) -> dict[str, Any]:
    def rank(step: object, view: object) -> int:
        return i

    def merge(branches: Any, task: object) -> str:
        return f"{i}"

    class Judge:
        def __call__(self, answer: object) -> bool:
            return answer == f"{i}"

    verify: Callable[[object], bool] = (lambda answer, want=f"{i}": answer == want) if i % 2 else Judge()
    return {"verify": verify, "policies": [rank], "merge": merge, "planner": "sample", "n": 2}


async def grows(requests: int, warm: int) -> tuple[float, int]:
    """Make requests that bring functions of their own; return bytes a request that stay, and classes."""
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as plait:
        for i in range(warm):
            assert (await plait.run("2 + 2?", **closures(i))).verified
        before = classes()
        tracemalloc.start()
        first = tracemalloc.get_traced_memory()[0]
        for i in range(requests):
            answer = await plait.run("2 + 2?", **closures(i))
            assert (answer.answer, answer.verified) == (f"{i}", True)
        gc.collect()
        grown = (tracemalloc.get_traced_memory()[0] - first) / requests
        tracemalloc.stop()
        return grown, classes() - before


async def test_five_hundred_requests_with_functions_of_their_own_leave_nothing() -> None:
    grown, made = await grows(500, 20)
    assert made <= 1, "a class for each closure would be 40 KiB a request"
    assert grown < 2000, f"{grown:.0f} bytes a request stay: ids of runs that are over, planners made last"


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_thousand_requests_leave_nothing() -> None:
    grown, made = await grows(10_000, 100)
    assert made <= 1
    assert grown < 600


async def test_functions_of_runs_at_the_same_time_are_not_taken_for_one_another() -> None:
    worker = Scripted([Reply(text="answer: 4", delay=0.01)], slots=2)
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        handles = [await plait.submit("2 + 2?", **closures(i)) for i in range(30)]
        gc.collect()
        answers = [await handle for handle in handles]
    assert [answer.answer for answer in answers] == [f"{i}" for i in range(30)]
    assert all(answer.verified for answer in answers)
