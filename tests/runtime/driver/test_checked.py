"""A worker that says too much, or counts that cannot be true."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from plait import AsyncOrchestrator
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker, offer
from plait.core.plan import Plan
from plait.core.result import Failure, Result, Usage
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins


class Says(Worker):
    """Yields what it is told to."""

    name = "says"
    slots = 4
    serves = ("think",)

    def __init__(self, items: Sequence[Progress | Result | Failure]) -> None:
        self.items = items
        self.closed_early = False

    async def start(self) -> None:
        pass

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        try:
            for item in self.items:
                yield item
        except GeneratorExit:
            self.closed_early = True
            raise

    async def cancel(self, attempt: int) -> None:
        pass

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("usage", [Usage(prompt=-5, completion=-7), Usage(completion=10**30, prompt=10**19)])
async def test_counts_that_cannot_be_true_are_not_taken(usage: Usage) -> None:
    worker = Says([Progress("a", 10**30), Result(value="fine", usage=usage)])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        answer = await orchestrator.run("go")
    assert (answer.value, answer.usage.prompt, answer.usage.completion) == ("fine", 0, 0)


async def test_a_cost_that_is_no_number_is_not_taken() -> None:
    worker = Says([Result(value="fine", usage=Usage(completion=3, cost=math.nan))])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        answer = await orchestrator.run("go")
    assert (answer.usage.cost, answer.usage.completion) == (0.0, 3)


async def test_the_first_end_counts_and_nothing_after_it() -> None:
    first, second = Result(value="first", usage=Usage(completion=1)), Result(value="second", usage=Usage(completion=50))
    worker = Says([first, Progress("more", 40), second])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        answer = await orchestrator.run("go")
    assert (answer.value, answer.usage.completion) == ("first", 1)
    assert worker.closed_early


async def test_a_failure_says_what_was_used() -> None:
    worker = Says([Failure(kind="EngineError", message="broke off", usage=Usage(prompt=4, completion=90))])
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        answer = await orchestrator.run("go")
    assert (answer.status, answer.usage.prompt, answer.usage.completion) == ("failed", 4, 90)


def test_a_worker_that_only_has_the_methods_offers_the_defaults() -> None:
    class Bare:
        name, slots, serves = "bare", 2, ("think",)

    said = offer(Bare())  # pyright: ignore[reportArgumentType]
    assert said == (2, ("think",), (), None, None, "", None, False, {})


@pytest.mark.parametrize(
    "wrong",
    [{"reasoning": 7}, {"anew": object()}, {"prior": 5}, {"labels": {"a": math.nan}}, {"labels": {"\ud83d": -1.0}},
     {"labels": [1]}, {"drawn": object()}, {"drawn": ("x",)}, {"extracted": "x"}, {"partial": object()},
     {"patch": "x"}, {"patch": Plan(steps=(), output="a")}],
)  # fmt: skip
async def test_a_field_that_few_workers_set_is_looked_at_too(wrong: dict[str, object], tmp_path: Path) -> None:
    """Some reached the caller as a TypeError, and some left a journal of all runs that could not be read again."""
    path = tmp_path / "runs.plait"
    async with AsyncOrchestrator(
        workers=[Says([Result(value="x").model_copy(update=wrong)])], journal=path
    ) as orchestrator:
        answer = await orchestrator.run("go")
    assert answer.status == "failed" and answer.failure is not None
    assert answer.failure.message.startswith("says returned ")
    assert replay(path, Plugins()).divergence is None


async def test_half_characters_in_any_text_of_a_result_are_written_as_what_a_file_can_hold(tmp_path: Path) -> None:
    half = {"reasoning": "half \ud83d", "anew": "\ud83d", "why": "\ud83d"}
    worker = Says([Result(value="fine").model_copy(update=half)])
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path / "runs.plait") as orchestrator:
        answer = await orchestrator.run("go")
    assert answer.answer == "fine" and answer.reasoning.startswith("half ") and answer.reasoning.isprintable()
    assert replay(tmp_path / "runs.plait", Plugins()).divergence is None
