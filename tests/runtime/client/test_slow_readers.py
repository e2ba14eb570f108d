"""A run whose news is read slowly keeps the reader's pace; one that is also awaited does not."""

from __future__ import annotations

import asyncio

import pytest

from plait import AsyncOrchestrator, Join, Plan, Step, Think
from plait.core import Text
from plait.runtime.client import handle as module
from plait.runtime.client.handle import Handle
from plait.workers.scripted import Reply, Scripted

WIDTH, SLOTS, WORDS = 120, 4, 10


def wide() -> Plan:
    names = tuple(f"s{i}" for i in range(WIDTH))
    ask = Think(prompt=(Text(text="q"),), stream=True)
    return Plan(
        steps=(*(Step(name=name, op=ask) for name in names), Step(name="all", op=Join(), needs=names)), output="all"
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "UNREAD", 400)
    return 400


def client() -> tuple[Scripted, AsyncOrchestrator]:
    worker = Scripted([Reply(text="word " * WORDS)], slots=SLOTS)
    return worker, AsyncOrchestrator(workers=[worker], journal="off")


async def settled(worker: Scripted) -> int:
    """Wait until nothing is sent to the worker any more; return how many requests it had."""
    before = -1
    while before != worker.counts["requests"]:
        before = worker.counts["requests"]
        await asyncio.sleep(0.2)
    return before


def unread(handle: Handle) -> int:
    assert handle._news is not None
    return handle._news.qsize()


async def test_a_reader_that_stands_still_holds_the_run_and_one_that_reads_on_gets_it_all(few: int) -> None:
    worker, plait = client()
    async with plait:
        handle = await plait.submit(plan=wide(), watch=True)
        news = handle.news()
        first = await anext(news)
        sent = await settled(worker)
        most = few + SLOTS * (WORDS + 8)
        assert sent < WIDTH // 2 and unread(handle) <= most
        assert not handle.paused and not handle.finished.done()
        rest = [first]
        async for each in news:
            assert unread(handle) <= most
            rest.append(each)
        assert rest[-1].kind == "answer" and rest[-1].answer.status == "done"
        assert sum(each.tokens > 0 for each in rest if each.kind == "text") >= WIDTH


async def test_a_pause_of_the_users_is_not_lifted_by_reading(few: int) -> None:
    worker, plait = client()
    async with plait:
        handle = await plait.submit(plan=wide(), watch=True)
        news = handle.news()
        await anext(news)
        await settled(worker)
        handle.pause()
        while unread(handle):
            await anext(news)
        sent = worker.counts["requests"]
        assert await settled(worker) == sent < WIDTH
        handle.resume()
        assert [each async for each in news][-1].kind == "answer"


async def test_who_awaits_the_answer_is_not_held_up_by_news_that_nobody_reads(few: int) -> None:
    _, plait = client()
    async with plait:
        handle = await plait.submit(plan=wide(), watch=True)
        news = handle.news()
        await anext(news)
        await asyncio.sleep(0.3)
        assert (await asyncio.wait_for(handle._wait(), 300)).status == "done"
