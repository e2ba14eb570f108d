"""A run whose news is read slowly keeps the reader's pace; one that is also awaited does not."""

from __future__ import annotations

import asyncio

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Step
from plait.core import Text
from plait.runtime.client import handle as module
from plait.runtime.client.answer import TextDelta
from plait.runtime.client.handle import Handle, NewsQueue
from plait.workers.scripted import Reply, Scripted

WIDTH, SLOTS, WORDS = 120, 4, 10


def wide() -> Plan:
    names = tuple(f"s{i}" for i in range(WIDTH))
    ask = ModelCall(prompt=(Text(text="q"),), stream=True)
    return Plan(
        steps=(*(Step(name=name, op=ask) for name in names), Step(name="all", op=Join(), needs=names)), output="all"
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "MAX_UNREAD_EVENTS", 400)
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
    return len(handle._news)


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


def text(step: str, said: str, tokens: int, logprob: float | None = None) -> TextDelta:
    return TextDelta(at=tokens / 10, step=step, text=said, tokens=tokens, logprob=logprob)


async def test_text_that_waits_is_read_as_one_piece_for_each_step_in_order() -> None:
    queue = NewsQueue()
    for item in (text("r:a", "one", 1), text("r:a", " two", 2), text("r:b", "x", 1), text("r:a", " three", 3)):
        queue.put(item)
    read = [await queue.get() for _ in range(3)]
    assert read == [text("r:a", "one two", 2), text("r:b", "x", 1), text("r:a", " three", 3)]
    assert not len(queue)


async def test_text_with_log_probabilities_is_not_joined_nor_is_text_before_other_news() -> None:
    queue, plain = NewsQueue(), text("r:a", "two", 2)
    error = OSError("gone")
    for item in (text("r:a", "one", 1, -0.5), plain, error, text("r:a", "three", 3)):
        queue.put(item)
    assert [await queue.get() for _ in range(4)] == [text("r:a", "one", 1, -0.5), plain, error, text("r:a", "three", 3)]


async def test_who_waits_for_news_gets_each_piece_when_it_comes() -> None:
    queue = NewsQueue()
    for said in ("a", "b"):
        waiting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.put(text("r:a", said, 1))
        assert await waiting == text("r:a", said, 1)
