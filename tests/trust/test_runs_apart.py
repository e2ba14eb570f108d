"""One run cannot hurt another: what a request, planner, policy, merge, tool or worker does ends at most its own run."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from plait import Answer, AsyncOrchestrator
from plait.core.errors import PlaitError
from plait.runtime.journal.journal import Journal

from .hostile import Nasty, case, double

INNOCENT = 10
TOGETHER = 10
"""Hostile runs at a time, each beside all the innocent ones."""


async def innocent(plait: AsyncOrchestrator, number: int) -> None:
    """A vote or a single call beside the hostile ones, whose answer is checked."""
    word = f"w{number}"
    planner = ("single", "sample:n=3", "adaptive")[number % 3]
    answer = await asyncio.wait_for(plait.run(f"say {word}", planner=planner), 300)
    assert (answer.status, answer.answer) == ("done", f"said: {word}"), (planner, answer)


async def hostile(plait: AsyncOrchestrator, seed: int) -> None:
    """A run that may end in any status or be refused, in words, and ends soon."""
    options = case(Random(seed))
    try:
        answer = await asyncio.wait_for(plait.run(**options), 300)
    except PlaitError as error:
        if not str(error).strip():
            raise AssertionError(f"seed {seed}: an error without words") from error
        return
    except TimeoutError:
        raise AssertionError(f"seed {seed}: never ended: {options}") from None
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__} reached the caller: {error} of {options}") from error
    assert isinstance(answer, Answer)
    if answer.status not in ("done", "partial"):
        assert answer.failure is not None and answer.failure.message.strip(), f"seed {seed}: no sentence"
    usage = answer.usage
    assert 0 <= usage.cached <= usage.prompt < 10**15 and 0 <= usage.completion < 10**15, f"seed {seed}: {usage}"
    assert math.isfinite(usage.cost) and usage.cost >= 0, f"seed {seed}: {usage}"


async def apart(cases: range, folder: Path) -> None:
    """Run all cases on one orchestrator, and read its journal afterwards."""
    path = folder / "runs.journal"
    worker = Nasty()
    async with AsyncOrchestrator(workers=[worker], tools=[double], journal=path) as plait:
        for first in range(cases.start, cases.stop, TOGETHER):
            seeds = range(first, min(first + TOGETHER, cases.stop))
            together: list[Any] = [hostile(plait, seed) for seed in seeds]
            together += [innocent(plait, number) for number in range(INNOCENT)]
            done = await asyncio.gather(*together, return_exceptions=True)
            errors = [error for error in done if error is not None]
            assert not errors, f"{len(errors)} of seeds {seeds}: {errors[:5]}"
    for row in Journal(path).rows():
        row.load()


async def test_hostile_runs_beside_innocent_ones(tmp_path: Path) -> None:
    await apart(range(400), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
async def test_a_hundred_thousand_hostile_runs(tmp_path: Path) -> None:
    for part in range(20):
        folder = tmp_path / str(part)
        folder.mkdir()
        await apart(range(400 + 5_000 * part, 400 + 5_000 * (part + 1)), folder)


async def test_ids_of_runs_do_not_collide_with_those_that_are_remembered() -> None:
    """Of 32 random bits one in 65,536 requests met a remembered id, was dropped as late, and never answered."""
    async with AsyncOrchestrator(workers=[Nasty()], journal="off") as plait:
        ids = [(await plait.run("say x")).run for _ in range(3)]
    assert len({*ids}) == 3 and all(len(each) == 32 and int(each, 16) >= 0 for each in ids)
