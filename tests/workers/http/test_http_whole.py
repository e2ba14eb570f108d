"""Answers in one piece: what the HTTP worker asks for when nobody follows a step's text."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.errors import ConfigError
from plait.core.ops import Tokens
from plait.core.result import Result, Usage
from plait.workers.http import Http

from .fake_server import FakeServer, Fault
from .http_kit import ask, at_a_crawl, eventually, fails, items, job, serving

LETTERS = "alpha beta gamma delta"


@pytest.fixture(autouse=True)
def _estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_crawl(monkeypatch)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 1},
        {"logprobs": 3},
        {"stop": ("gamma",)},
        {"stop": ("gamma",), "keep_stop": True},
        {"max_tokens": 2},
    ],
)
async def test_it_says_what_a_stream_says(ids: bool, chat: bool, fields: dict[str, object]) -> None:
    results: list[Result] = []
    for whole in (0, 512):
        async with serving(FakeServer(ids=ids, cached=1), stream_above_tokens=whole) as (server, worker):
            fields = {"max_tokens": 16} | fields
            results.append(await ask(worker, "one two", chat=chat, **fields))
            assert [bool(body["stream"]) for body in server.asked()] == [not whole]
            assert all("stream_options" not in body or body["stream"] for body in server.asked())
    streamed, at_once = results
    assert at_once == streamed
    assert at_once.value and at_once.usage.uncounted == 0


async def test_what_is_followed_or_long_is_streamed() -> None:
    async with serving(stream_above_tokens=8) as (server, worker):
        asked: tuple[dict[str, Any], ...] = (
            {"stream": True, "max_tokens": 8},
            {"logprobs": 2, "window": 2, "max_tokens": 8},
            {"max_tokens": 9},
        )
        for fields in asked:
            await items(worker, job(**fields))
        assert [body["stream"] for body in server.asked()] == [True, True, True]
        server.requests.clear()
        (result,) = await items(worker, job(max_tokens=8))
        assert [body["stream"] for body in server.asked()] == [False]
        assert isinstance(result, Result)


async def test_of_an_answer_that_is_given_up_the_length_is_not_known() -> None:
    async with serving(FakeServer(delay=0.2), stream_above_tokens=512) as (server, worker):
        running = asyncio.create_task(items(worker, job(max_tokens=16)))
        await eventually(lambda: server.running == 1)
        await worker.cancel(1)
        (result,) = await running
        assert isinstance(result, Result)
        assert result.finish == "cancelled"
        assert result.usage.uncounted > 0 and 0 < result.usage.completion <= 16, "an estimate"
        assert result.usage.completion + result.usage.uncounted == 16, "it may have made all that it was asked for"
        assert result.usage.prompt > 0, "it was sent"
        await eventually(lambda: server.running == 0)
        assert server.disconnects == 1


async def test_one_that_waits_for_its_turn_is_no_uncounted_one() -> None:
    async with serving(FakeServer(delay=0.2), stream_above_tokens=512, slots=1) as (server, worker):
        first = asyncio.create_task(items(worker, job(max_tokens=16)))
        await eventually(lambda: server.running == 1)
        second = asyncio.create_task(items(worker, job(max_tokens=16, attempt=2)))
        await asyncio.sleep(0)
        await worker.cancel(2)
        (given_up,) = await second
        assert isinstance(given_up, Result)
        assert given_up.usage == Usage()
        await worker.cancel(1)
        await first


async def test_one_that_broke_off_is_asked_for_again() -> None:
    async with serving(FakeServer(), stream_above_tokens=512) as (server, worker):
        server.faults.append(Fault(after=1))
        result = await ask(worker, "one two", max_tokens=16)
        assert result.value == " " + LETTERS
        assert len(server.asked()) == 2
        assert result.usage.uncounted == 15 and result.usage.completion > 5, "with an estimate for the first"


async def test_it_goes_on_from_the_ids_of_a_lost_attempt() -> None:
    async with serving(FakeServer(), stream_above_tokens=512) as (server, worker):
        prompt = tuple(server.encode("one two"))
        past = tuple(server.encode(" alpha beta"))
        (result,) = await items(worker, job((Tokens(ids=prompt),), max_tokens=16, generated=past))
        assert isinstance(result, Result), result
        assert server.asked()[-1]["prompt"] == [*prompt, *past]
        assert server.asked()[-1]["stream"] is False
        assert isinstance(result.value, str)
        assert result.value.startswith(" alpha beta")


async def test_a_run_says_that_its_tokens_are_not_all_counted() -> None:
    """Two of three votes agree, and the third, which takes for ever, is given up."""
    server, calls = FakeServer(ids=False), itertools.count(1)

    def reply(prompt: str) -> str:
        server.delay = 60.0 if next(calls) == 3 else 0.0
        return "answer: 4"

    async with server:
        async with AsyncOrchestrator(config=Config(worker="http", base_url=server.url, journal="off")) as orchestrator:
            server.reply = reply
            answer = await orchestrator.run("2 + 2", planner="sample:n=3,answer.max_tokens=8,early=true")
    assert answer.answer == "4" and 2 * 3 < answer.total_tokens
    assert answer.total_tokens + answer.usage.uncounted == 2 * 3 + 8
    assert f"about {answer.total_tokens} tokens" in answer.explain()
    usage = answer.summary()["usage"]
    assert isinstance(usage, dict) and usage["uncounted"] == answer.usage.uncounted


def test_a_length_under_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="stream_above_tokens"):
        Http("http://localhost:1/v1", stream_above_tokens=-1)


async def test_a_refusal_is_told() -> None:
    async with serving(FakeServer(), stream_above_tokens=512) as (server, worker):
        server.faults.append(Fault(status=400, message="no such thing"))
        failure = await fails(worker, "one two", max_tokens=4)
        assert "no such thing" in failure.message
