"""One bad request, value or watcher ends its own run alone; what workers and callers say is checked in one place."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from plait import AsyncOrchestrator, Orchestrator
from plait.core.budget import Budget
from plait.core.errors import UsageError
from plait.core.events import Job
from plait.core.interfaces import Policy, Progress, ReviewAt
from plait.core.result import Failure, Result, Usage
from plait.core.values import json_value
from plait.core.view import View
from plait.runtime.driver.jobs import sound_end
from plait.runtime.journal.directory import entries, journals
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


BAD = [b"bytes", object(), nested(5000), 10**6001, {1: 2}]
ODD = [
    Result(value="half \ud83d"),
    Result.model_construct(value={"\ud83d": ["\ud83d"]}, usage=Usage()),
    *(Result.model_construct(value=value, usage=Usage()) for value in BAD),
    Result.model_construct(value="x", usage=Usage.model_construct(prompt=10**30, completion=-5)),
]


class Odd(Scripted):
    """Gives odd values for the text `odd`, and fine ones else."""

    def __init__(self, end: Result) -> None:
        super().__init__([Reply(text="fine", delay=0.05)])
        self.end = end

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        if "odd" in str(job.op):
            yield Progress(text="\ud83d", tokens=10**30)
            yield self.end
            return
        async for item in super().run(job):
            yield item


@pytest.mark.parametrize("end", ODD, ids=range(len(ODD)))
async def test_an_odd_value_ends_its_own_run_alone(end: Result, tmp_path: Path) -> None:
    path = tmp_path / "j.plait"
    async with AsyncOrchestrator(workers=[Odd(end)], journal=path) as orchestrator:
        other = asyncio.ensure_future(orchestrator.run("other"))
        odd = await orchestrator.run("odd")
        assert odd.status in ("done", "failed")
        if odd.failure is not None:
            assert "cannot be serialized" in odd.failure.message
        assert (await other).value == "fine"
        assert (await orchestrator.run("more")).value == "fine"
    assert replay(path, Plugins(), check=check_invariants).divergence is None


async def test_a_request_with_half_a_character_is_run(tmp_path: Path) -> None:
    path = tmp_path / "j.plait"
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")])], journal=path) as orchestrator:
        answer = await orchestrator.run("half \ud83d")
        assert answer.value == "fine" and len(answer.run) == 32
        assert (await orchestrator.run("more")).value == "fine"
    assert replay(path, Plugins(), check=check_invariants).divergence is None


def test_what_is_in_order_is_not_copied() -> None:
    value = {"a": [1, "é", None, 0.5, {"b": True}]}
    assert json_value(value) is value
    result = Result(value=value)
    assert sound_end(result, "w") is result


class Raises(Scripted):
    """Raises what no worker should."""

    error: BaseException | None = None

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        if self.error is not None:
            raise self.error
        return
        yield


@pytest.mark.parametrize("error", [None, GeneratorExit(), BaseExceptionGroup("two", [SystemExit(1), GeneratorExit()])])
async def test_a_worker_without_an_end_fails_its_step(error: BaseException | None) -> None:
    worker = Raises([Reply(text="x")])
    worker.error = error
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        answer = await asyncio.wait_for(orchestrator.run("go"), 300)
    assert answer.status == "failed"


async def test_a_watcher_that_raises_ends_its_own_run() -> None:
    def raises(*_: object) -> None:
        raise ValueError("not mine")

    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine", delay=0.05)])], journal="off") as orchestrator:
        first, second = [await orchestrator.submit("go") for _ in range(2)]
        orchestrator._driver.watch(first.run, raises)
        with pytest.raises(ValueError, match="not mine"):
            await first
        assert (await second).value == "fine"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"planer": "sample"}, "`planer` is not known here; did you mean 'planner'"),
        ({"temperature": 1}, "temperature is a field of `generation`"),
        ({"policies": "consensus"}, r"write policies=\['consensus'\]"),
    ],
)
async def test_options_that_are_not_known_are_refused(options: dict[str, object], match: str) -> None:
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")])], journal="off") as orchestrator:
        with pytest.raises(UsageError, match=match):
            await orchestrator.run("go", **options)
        with pytest.raises(UsageError, match="a request is a text, and this is a list"):
            await orchestrator.run([{"role": "user", "content": "go"}])


def test_a_map_that_is_refused_leaves_nothing_running() -> None:
    with Orchestrator(workers=[Scripted([Reply(text="fine", delay=5)])], journal="off") as plait:
        with pytest.raises(UsageError, match="a request is a text"):
            plait.map(["good", 3])
        runs = plait._inner._driver.machine.runs
        for _ in range(100):
            if not runs:
                break
            plait._do(asyncio.sleep(0.02))
        assert not runs


class Sleepless(Policy):
    """Asks for a time that is none."""

    needs_stream: ClassVar[bool] = True

    def review(self, event: object, view: View) -> list[ReviewAt]:
        """Ask."""
        return [ReviewAt(at=float("nan"))]


async def test_a_policy_that_asks_for_no_time_ends_its_own_run_alone() -> None:
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine", delay=0.05)])], journal="off") as orchestrator:
        odd, other = await asyncio.gather(
            orchestrator.run("go", policies=[Sleepless]), orchestrator.run("go", budget=Budget(seconds=5))
        )
    assert odd.status == "failed" and "NaN" in odd.failure.message
    assert other.value == "fine"


async def test_a_damaged_index_hides_its_own_file_alone(tmp_path: Path) -> None:
    for _ in range(2):
        async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")])], journal=tmp_path) as orchestrator:
            await orchestrator.run("go")
    first, second = journals(tmp_path)
    with contextlib.closing(sqlite3.connect(first)) as db, db:
        db.execute("UPDATE runs SET created = 'yesterday'")
    assert [entry.path for entry in entries(tmp_path)] == [second]
