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

import httpx
import pytest

from plait import AsyncOrchestrator, Config, Plugin
from plait.core.chat import with_prompt
from plait.core.events import Job
from plait.core.interfaces import Worker
from plait.core.ops import ModelCall, Text
from plait.core.result import Failure
from plait.runtime.client.answer import Answer
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins
from plait.workers.http import Http
from plait.workers.scripted import Reply, Scripted
from plait_server.app import build
from plait_server.service import Service
from plait_server.settings import Settings
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, planner as made, run_python, search

from .cells import replies
from .truth import TruthServer, ended

RACES = {"think_summarize", "tree"}
"""Planners that say that what they answer depends on which call ends first."""


@dataclass(frozen=True)
class Outcome:
    """What must be the same of two runs."""

    status: str
    value: object
    failure: str


async def ask(planner: str, workers: list[Worker], *, watch: bool = False, **settings: Any) -> Outcome:
    """Run a planner on workers, and return what must be the same."""
    return outcome_of(await asked(planner, workers, watch=watch, **settings))


async def asked(
    planner: str, workers: list[Worker], *, watch: bool = False, more: dict[str, Any] | None = None, **settings: Any
) -> Answer:
    """Run a planner on workers; `more` are options of it."""
    task, text = ASKS.get(planner, ("plain", PROMPT))
    spec = Plugin(name=planner, options=OPTIONS.get(planner, {}) | (more or {}))
    config = Config(journal="off", **settings)
    async with AsyncOrchestrator(config=config, workers=workers, tools=[search, run_python]) as plait:
        return await (await plait.submit(text, planner=spec, task=task, seed=7, watch=watch))


def outcome_of(answer: Answer) -> Outcome:
    """Return what must be the same of a run."""
    return Outcome(answer.status, answer.value, "" if answer.failure is None else answer.failure.kind)


class Shuffled(Http):
    """A server whose answers come in another order: each waits for a moment that its prompt and a number decide."""

    order = 0

    async def run(self, job: Job) -> Any:
        if isinstance(job.op, ModelCall):
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
                for table, column in (("events", "seq"), ("marks", "seq"), ("sessions", "first")):
                    db.execute(f"DELETE FROM {table} WHERE {column} > ?", (cut,))
                db.execute("UPDATE runs SET status = NULL")
            async with plait(path) as resumed:
                answer = outcome_of(await resumed.resume(first.run))
            if answer != outcome_of(first):
                return outcome_of(first), answer
    return outcome_of(first), outcome_of(first)


class Same(Scripted):
    """Answers in this process as the server of `served` answers over HTTP: words by the same function, the same tokens
    counted, the same ends."""

    def __init__(self, planner: str) -> None:
        super().__init__([Reply(text="")])
        self._said = replies(planner)

    def _prepare(self, job: Job) -> Any:
        found = super()._prepare(job)
        if isinstance(found, Failure):
            return found
        think, prompt, _ = found
        if think.messages:
            last = "".join(part.text for part in think.prompt if isinstance(part, Text)) + think.begin
            prompt = "\n\n".join(TruthServer._shown(each.as_json()) for each in with_prompt(think.messages, last))
        text = self._said(prompt, int(think.sampling.seed or 0))
        tokens, finish, _ = ended(text, think.sampling.max_tokens, think.sampling.stop)
        return think, prompt, Reply(text="".join(tokens), finish="length" if finish == "length" else "stop")


async def scripted_is_http(planner: str, folder: Path) -> tuple[Outcome, Outcome]:
    return await ask(planner, [Same(planner)]), await served(planner)


async def called_is_served(planner: str, folder: Path) -> tuple[Outcome, Outcome]:
    """The same request through the SDK and as a body of the server's: what is told in a body."""
    task, text = ASKS.get(planner, ("plain", PROMPT))
    body = {
        "model": "plait/single",
        "messages": [{"role": "user", "content": text}],
        "seed": 7,
        "plait": {
            "planner": {"name": planner.replace("_", "-"), "options": OPTIONS.get(planner, {})},
            "task": {"name": task.replace("_", "-")},
        },
    }
    async with TruthServer.of("text", True, replies=replies(planner)) as server:
        called = await asked(planner, [Http(server.url, slots=8, backoff=0.001)])
        worker = Http(server.url, slots=8, backoff=0.001)
        plait = AsyncOrchestrator(config=Config(journal="off"), workers=[worker], tools=[search, run_python])
        service = Service(plait, Settings(port=0, planners=tuple(Plugins().names("planner"))), [worker])
        client = httpx.AsyncClient(transport=httpx.ASGITransport(build(service)), base_url="http://localhost")
        await service.start()
        try:
            said = (await client.post("/v1/chat/completions", json=body, timeout=300)).json()
        finally:
            await client.aclose()
            await service.close()
    first = Outcome(called.status, called.answer, "" if called.failure is None else called.failure.code)
    if error := said.get("error"):
        return first, Outcome("failed", None, error["code"])
    return first, Outcome(said["plait"]["status"], said["plait"]["answer"], "")


async def early_is_whole(planner: str, folder: Path) -> tuple[Outcome, Outcome]:
    """A vote that ends as soon as it is decided, or a call that is read while it is written, beside all of it."""
    return await served(planner, more={"early": True}), await served(planner, more={"early": False})


EARLY = [each for each in NAMES if "early" in type(made(each)).model_fields]
ALL = (cold_is_warm, whole_is_streamed, any_order_is_one, live_is_resumed, scripted_is_http, called_is_served)
ORACLES = {each.__name__: each for each in ALL}
PAIRS = [*itertools.product(NAMES, ORACLES), *((each, "early_is_whole") for each in EARLY)]
ORACLES["early_is_whole"] = early_is_whole
SAMPLE = random.Random(28).sample(PAIRS, 40)


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
    assert ("a seed does not determine the answer" in said) == (planner in RACES)
