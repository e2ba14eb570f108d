"""Pairs of runs that must give the same: every planner, under every pair of conditions.

A model that is a function of prompt and seed answers both, so any difference is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config, Plugin
from plait.core.events import Job
from plait.core.interfaces import Worker
from plait.core.ops import Think
from plait.runtime.client.answer import Answer
from plait.runtime.journal.journal import Journal
from plait.workers.http import Http
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, planner as made, run_python, search

from .cells import replies
from .truth import TruthServer

RACES = {"think_summarize", "evolve", "tree"}
"""Planners that say that what they answer depends on which call ends first."""


@dataclass(frozen=True)
class Outcome:
    """What must be the same of two runs."""

    status: str
    value: object
    failure: str


async def ask(planner: str, workers: list[Worker], *, watch: bool = False, **settings: Any) -> Outcome:
    """Run a planner on workers."""
    task, text = ASKS.get(planner, ("plain", PROMPT))
    spec = Plugin(name=planner, options=OPTIONS.get(planner, {}))
    config = Config(journal="off", **settings)
    async with AsyncOrchestrator(config=config, workers=workers, tools=[search, run_python]) as plait:
        answer = await (await plait.submit(text, planner=spec, task=task, seed=7, watch=watch))
    return _outcome(answer)


def _outcome(answer: Answer) -> Outcome:
    return Outcome(answer.status, answer.value, "" if answer.failure is None else answer.failure.kind)


class Shuffled(Http):
    """A server whose answers come in another order: each waits for a moment that its prompt and a number decide."""

    order = 0

    async def run(self, job: Job) -> Any:
        if isinstance(job.op, Think):
            await asyncio.sleep(
                0.001 * random.Random(f"{self.order} {job.op.prompt} {job.op.sampling.seed}").randrange(25)
            )
        async for each in super().run(job):
            yield each


async def served(planner: str, make: Callable[..., Worker] = Http, **fields: Any) -> Outcome:
    async with TruthServer.of("text", True, replies=replies(planner)) as server:
        return await ask(planner, [make(server.url, slots=8, backoff=0.001)], **fields)


async def cold_is_warm(planner: str, folder: Path) -> tuple[Outcome, Outcome]:
    async with TruthServer.of("text", True, replies=replies(planner)) as server:
        first, second = [
            await ask(planner, [Http(server.url, slots=8, backoff=0.001)], cache=folder / "cache") for _ in range(2)
        ]
    return first, second


async def whole_is_streamed(planner: str, folder: Path) -> tuple[Outcome, Outcome]:
    return await served(planner), await served(planner, watch=True)


async def any_order_is_one(planner: str, folder: Path) -> tuple[Outcome, Outcome]:
    def one(order: int) -> Callable[..., Worker]:
        return type("Ordered", (Shuffled,), {"order": order})

    return await served(planner, one(1)), await served(planner, one(2))


async def live_is_resumed(planner: str, folder: Path, cuts: int = 2) -> tuple[Outcome, Outcome]:
    """Cut the journal of a run after so many of its events (0: after each), and take each beginning up. The second
    outcome is the first one that differs, if any does."""
    task, text = ASKS.get(planner, ("plain", PROMPT))
    spec = Plugin(name=planner, options=OPTIONS.get(planner, {}))
    whole = folder / "whole.plait"
    async with TruthServer.of("text", True, replies=replies(planner)) as server:

        def plait(path: Path) -> AsyncOrchestrator:
            worker = Http(server.url, slots=8, backoff=0.001)
            return AsyncOrchestrator(config=Config(journal=path), workers=[worker], tools=[search, run_python])

        async with plait(whole) as live:
            first = await live.run(text, planner=spec, task=task, seed=7)
        seqs = [row.seq for row in Journal(whole).rows()]
        begun = next(row.seq for row in Journal(whole).rows() if row.kind == "submitted")
        places = [seq for seq in seqs if begun <= seq < seqs[-1]]
        for cut in random.Random(planner).sample(places, min(cuts, len(places))) if cuts else places:
            path = folder / f"cut-{cut}.plait"
            shutil.copy(whole, path)
            with contextlib.closing(sqlite3.connect(path)) as db, db:
                for table, column in (("events", "seq"), ("actions", "seq"), ("sessions", "first")):
                    db.execute(f"DELETE FROM {table} WHERE {column} > ?", (cut,))
                db.execute("UPDATE runs SET status = NULL")
            async with plait(path) as resumed:
                answer = _outcome(await resumed.resume(first.run))
            if answer != _outcome(first):
                return _outcome(first), answer
    return _outcome(first), _outcome(first)


ORACLES = {each.__name__: each for each in (cold_is_warm, whole_is_streamed, any_order_is_one, live_is_resumed)}
PAIRS = list(itertools.product(NAMES, ORACLES))
SAMPLE = random.Random(28).sample(PAIRS, 30)


async def check(planner: str, oracle: str, folder: Path, **more: int) -> None:
    one, other = await ORACLES[oracle](planner, folder, **more)
    if planner in RACES:
        assert one.status == other.status
    else:
        assert one == other


@pytest.mark.parametrize(("planner", "oracle"), SAMPLE)
async def test_a_sample_of_pairs_that_must_be_the_same(planner: str, oracle: str, tmp_path: Path) -> None:
    await check(planner, oracle, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("planner", "oracle"), PAIRS)
async def test_all_pairs_that_must_be_the_same(planner: str, oracle: str, tmp_path: Path) -> None:
    await check(planner, oracle, tmp_path, **({"cuts": 0} if oracle == "live_is_resumed" else {}))


@pytest.mark.parametrize("planner", NAMES)
def test_a_planner_that_races_says_so_in_its_help(planner: str) -> None:
    said = " ".join((type(made(planner)).__doc__ or "").split())
    assert ("a seed does not fix the answer" in said) == (planner in RACES)
