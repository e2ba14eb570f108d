"""The inside of a Ray actor, without Ray: calls in order, news in batches, and where checkpoints go out."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from plait import ModelCall
from plait.core import Result, Text
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers._shared.batch_streams import TokenBatch
from plait.workers.ray import actor
from plait.workers.ray.actor import ActorHost, IdsIn
from plait.workers.scripted import Reply, Scripted

HOST = "plait.workers.scripted:Scripted"
REPLIES = [Reply(when="slow", text="word " * 5000, tokens_per_second=200), Reply(text="one two three")]


def job(attempt: int, prompt: str) -> Job:
    return Job(attempt=attempt, run="r", step=f"r:{attempt}", op=ModelCall(prompt=(Text(text=prompt),)))


async def exchanged(host: ActorHost, *calls: tuple[int, list[Job], list[int]]) -> list[Any]:
    """Make the calls in the order given; return the news that come with them and with further calls until all the jobs
    have ended."""
    due = sum(len(jobs) for _, jobs, _ in calls)
    waiting = [asyncio.ensure_future(host.exchange(*call)) for call in calls]
    news: list[Any] = []
    number = max(number for number, _, _ in calls)
    while sum(isinstance(item, Result | Failure) for _, item in news) < due:
        for each in waiting:
            news += await asyncio.wait_for(each, 300)
        number += 1
        waiting = [asyncio.ensure_future(host.exchange(number))]
    for each in waiting:
        each.cancel()
    return news


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_cancel_that_overtakes_its_job_waits_for_it(order: tuple[int, int]) -> None:
    host = ActorHost(HOST, {"replies": REPLIES})
    calls = [(0, [job(1, "slow"), job(2, "a")], []), (1, [], [1, 77])]
    ends = dict(await exchanged(host, *(calls[number] for number in order)))
    assert isinstance(ends[1], Result) and ends[1].finish == "cancelled"
    assert isinstance(ends[2], Result) and ends[2].finish != "cancelled"
    await host.close()


async def test_a_cancel_in_the_call_of_its_job_is_not_lost() -> None:
    host = ActorHost(HOST, {"replies": REPLIES})
    ((attempt, end),) = await exchanged(host, (0, [job(1, "slow")], [1]))
    assert attempt == 1 and isinstance(end, Result) and end.finish == "cancelled"
    await host.close()


async def test_nothing_is_kept_of_cancels_that_come_too_late() -> None:
    host = ActorHost(HOST, {"replies": REPLIES})
    await asyncio.wait_for(host.exchange(0, [job(1, "a")]), 300)
    waiting = asyncio.ensure_future(host.exchange(1, [], [1]))
    await asyncio.sleep(0.01)
    assert not host._tasks and not host._live and not host._calls
    waiting.cancel()
    await host.close()


async def test_only_the_newest_call_waits_and_none_that_came_late_has_news() -> None:
    host = ActorHost(HOST, {"replies": REPLIES})
    first = asyncio.ensure_future(host.exchange(0))
    await asyncio.sleep(0.01)
    third = asyncio.ensure_future(host.exchange(2, [job(1, "a")]))
    assert await asyncio.wait_for(first, 300) == []  # with no news, since another call waits for it now
    assert not third.done() and not host._tasks  # its job waits for the call before it
    assert await asyncio.wait_for(host.exchange(1, [job(2, "b")]), 300) == []
    news = await asyncio.wait_for(third, 300)
    if len(news) < 2:
        news += await asyncio.wait_for(host.exchange(3), 300)
    assert [each[0] for each in news] == [2, 1]
    await host.close()


async def test_checkpoints_go_out_at_once_and_before_what_comes_after_them() -> None:
    host = ActorHost(HOST, {"replies": REPLIES})
    waiting = asyncio.ensure_future(host.exchange(0))
    await asyncio.sleep(0)
    one, two = TokenBatch([1, 2], [2, 1], [5, 6, 7]), TokenBatch([1], [1], [8])
    assert [list(each) for _, each in one.parts()] == [[5, 6], [7]]
    host._account(one)
    host._account(two)
    assert await asyncio.wait_for(waiting, 300) == [one, two]
    host._account(one)
    news = await asyncio.wait_for(host.exchange(1, [job(3, "a")]), 300)
    assert news[0] == one
    await host.close()


class Accounting(Scripted):
    """Has checkpoints, as an engine has, which come from a thread."""

    on_checkpoint: Any = None

    def account(self, checkpoint: TokenBatch) -> None:
        thread = threading.Thread(target=self.on_checkpoint, args=(checkpoint,))
        thread.start()
        thread.join()


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Accounting:
    hosted = Accounting(replies=REPLIES)
    monkeypatch.setattr(actor, "load", lambda spec, options: hosted)
    return hosted


async def test_checkpoints_go_into_the_pipe_where_there_is_one(hosted: Accounting) -> None:
    pipe = IdsIn()
    host = ActorHost("here", {})
    await host.start(pipe.path)
    hosted.account(TokenBatch([1, 2], [2, 1], [5, 6, 7]))
    (told,) = pipe.read()
    assert tuple(map(list, told)) == ([1, 2], [2, 1], [5, 6, 7])
    assert not host._news
    pipe.close()


@pytest.mark.parametrize("path", [None, "/nowhere/ids"])
async def test_checkpoints_go_with_the_news_where_there_is_no_pipe(hosted: Accounting, path: str | None) -> None:
    host = ActorHost("here", {})
    await host.start(path)
    waiting = asyncio.ensure_future(host.exchange(0))
    hosted.account(checkpoint := TokenBatch([1], [1], [5]))
    assert await asyncio.wait_for(waiting, 300) == [checkpoint]
