"""The ledger closes: what is told of a run is what its servers did, or within what is told to be uncounted."""

from __future__ import annotations

import asyncio
import random

import pytest

from plait import AsyncOrchestrator, Budget, Config, Flow
from plait.core.result import Price
from plait.workers.http import Http
from plait.workers.http.usage_meter import UNREAD_TOKENS
from tests.planners.test_contract import PROMPT
from tests.workers.http.fake_server import Fault

from .cells import CELLS, FORMS, LIVE, MILLION, PRICE, Cell, limited, replies, run
from .truth import Form, Truth, TruthServer

SAMPLE = random.Random(28).sample(CELLS, 48)
"""Cells of the default tests."""


@pytest.mark.parametrize("cell", SAMPLE, ids=str)
async def test_a_sample_of_the_matrix(cell: Cell) -> None:
    assert not list((await run(cell)).anomalies)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_the_matrix(cell: Cell) -> None:
    assert not list((await run(cell)).anomalies)


LIMITS = ("tokens", "total_tokens", "cost")
LIMITED = [(cell, limit) for cell in CELLS if cell.condition == "plain" for limit in LIMITS]


async def check_limit(cell: Cell, limit: str) -> None:
    most, spent, found = await limited(cell, limit)
    assert not list(found.anomalies)
    report = LIVE * UNREAD_TOKENS * (PRICE.output / MILLION if limit == "cost" else 1)
    assert spent <= most + report, f"{limit}: {spent} of {most}"


@pytest.mark.parametrize(("cell", "limit"), random.Random(28).sample(LIMITED, 8), ids=str)
async def test_a_sample_of_planners_within_a_limit(cell: Cell, limit: str) -> None:
    await check_limit(cell, limit)


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "limit"), LIMITED, ids=str)
async def test_every_planner_passes_a_limit_by_one_report_of_each_live_attempt(cell: Cell, limit: str) -> None:
    await check_limit(cell, limit)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("stop", [(), ("omega",)])
@pytest.mark.parametrize(("limit", "most"), [("tokens", 150), ("total_tokens", 400), ("cost", 600)])
async def test_a_budget_is_passed_by_one_report_of_each_live_attempt(
    form: Form, told: bool, stop: tuple[str, ...], limit: str, most: int
) -> None:
    """Thirty calls one after another, four at a time, by a flow whose calls end at a stop text or by themselves."""

    class Calls(Flow):
        async def run(self, ctx: Flow.Context, question: str) -> str:
            async def one(number: int) -> str:
                return (await ctx.think([question, f" {number}"], stop=stop, keep_stop=bool(stop), max_tokens=40)).text

            for first in range(0, 30, LIVE):
                await ctx.gather(*[one(number) for number in range(first, first + LIVE)], return_exceptions=True)
            return "all"

    async with TruthServer.of(form, told, replies=replies("sample")) as server:
        config = Config(journal="off", prices={"default": Price(input=1e6, output=4e6)})
        async with AsyncOrchestrator(config=config, workers=[Http(server.url, slots=LIVE, backoff=0.001)]) as plait:
            await plait.start()
            server.truth = Truth()
            budget = Budget(**{limit: most})
            answer = await plait.run(PROMPT, planner=Calls(), budget=budget)
    truth = server.truth
    spent = {
        "tokens": truth.completion,
        "total_tokens": truth.prompt + truth.completion,
        "cost": truth.prompt + 4 * truth.completion,
    }[limit]
    assert truth.requests and 0.2 * most < spent <= most + LIVE * UNREAD_TOKENS * (4 if limit == "cost" else 1)
    usage = answer.usage
    assert abs(usage.completion - truth.completion) <= usage.uncounted
    assert abs(usage.prompt - truth.prompt) <= usage.uncounted_prompt
    bound = usage.uncounted_prompt + 4 * usage.uncounted
    assert abs(usage.cost - truth.prompt - 4 * truth.completion) <= bound + 1e-6


@pytest.mark.parametrize("told", [True, False])
async def test_thoughts_of_an_answer_that_broke_off_count_once(told: bool) -> None:
    async with TruthServer.of("ids", told, replies=replies("single"), thinks=True) as server:
        async with AsyncOrchestrator(config=Config(journal="off"), workers=[Http(server.url, backoff=0.001)]) as plait:
            await plait.start()
            for question in ("one two three", "a b c d e f"):
                server.truth = Truth()
                server.faults.append(Fault(after=5))
                ask = [{"role": "user", "content": question}]
                usage = (await plait.run(messages=ask, planner="single:answer.stream=true", seed=7)).usage
                assert server.truth.requests == 2 and server.truth.thoughts == usage.thoughts == 3


async def test_thoughts_of_an_answer_in_one_piece_are_counted() -> None:
    """By their share of the text, where the server does not say."""
    async with TruthServer.of("chat", False, replies=replies("single"), thinks=True) as server:
        async with AsyncOrchestrator(config=Config(journal="off"), workers=[Http(server.url)]) as plait:
            await plait.start()
            for number in range(9):
                server.truth = Truth()
                usage = (await plait.run("one two" + " more" * number, planner="single", seed=7)).usage
                assert (usage.thoughts > 0) == (server.truth.thoughts > 0)
                assert abs(usage.thoughts - server.truth.thoughts) <= usage.uncounted


async def test_a_request_that_is_left_before_its_first_token_counts_its_prompt() -> None:
    for form in FORMS:
        async with TruthServer.of(form, True, replies=replies("single")) as server:
            worker = Http(server.url, backoff=0.001)
            async with AsyncOrchestrator(config=Config(journal="off"), workers=[worker]) as plait:
                await plait.start()
                server.delay, server.truth = 30.0, Truth()
                handle = await plait.submit("one two three four", planner="single", watch=True)
                while not server.truth.requests:
                    await asyncio.sleep(0.001)
                handle.cancel()
                usage = (await handle).usage
        assert usage.prompt > 0 and usage.uncounted > 0
        assert abs(usage.prompt - server.truth.prompt) <= usage.uncounted_prompt
        assert usage.uncounted_prompt >= usage.prompt, "perhaps the server has not got it"
