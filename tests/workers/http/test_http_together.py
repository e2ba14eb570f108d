"""Pieces of a stream that arrive together are told as one; the worker calls its caller back, without a task between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from plait.core.interfaces import Progress, direct
from plait.core.result import Failure, Result

from .fake_server import FakeServer
from .http_kit import Items, job, serving

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def piece(text: str, logprob: float | None = None, finish: str | None = None) -> dict[str, Any]:
    said = None if logprob is None else {"tokens": [text], "token_logprobs": [logprob], "top_logprobs": None}
    return {"choices": [{"index": 0, "text": text, "logprobs": said, "finish_reason": finish}]}


def usage(completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": completion}}


def writes(*batches: Sequence[object]) -> Any:
    """Answer with some JSON objects in each write, and let each arrive before the next."""

    async def wild(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        writer.write(HEAD)
        for batch in batches:
            lines = [item if isinstance(item, str) else json.dumps(item) for item in batch]
            writer.write("".join(f"data: {line}\n\n" for line in lines).encode())
            await writer.drain()
            await asyncio.sleep(0.1)

    return wild


async def told(wild: Any, **fields: Any) -> Items:
    heard: Items = []
    async with serving(FakeServer()) as (server, worker):
        server.wild = wild
        ended = asyncio.Event()

        def tell(item: Progress | Result | Failure) -> None:
            heard.append(item)
            if not isinstance(item, Progress):
                ended.set()

        assert direct(worker) is worker
        worker.begin(job(stream=True, **fields), tell)
        await asyncio.wait_for(ended.wait(), 60)
    return heard


async def test_what_arrives_together_is_one_piece_in_order_with_its_counts_and_the_usage() -> None:
    batches = ([piece("one")], [piece(" two"), piece(" three"), piece(" four", finish="stop"), usage(4), "[DONE]"])
    first, rest, end = await told(writes(*batches))
    assert isinstance(first, Progress) and isinstance(rest, Progress) and isinstance(end, Result)
    assert [(item.text, item.tokens) for item in (first, rest)] == [("one", 1), (" two three four", 3)]
    assert (end.value, end.finish, end.usage.prompt, end.usage.completion) == ("one two three four", "stop", 7, 4)


async def test_log_probabilities_of_a_joined_piece_are_their_mean_and_the_end_has_them_all() -> None:
    batch = [piece("one", -0.5), piece(" two", -1.5), piece(" three", -1.0, finish="stop"), usage(3), "[DONE]"]
    together, end = await told(writes(batch), logprobs=1)
    assert isinstance(together, Progress) and isinstance(end, Result)
    assert together.logprob == pytest.approx(-1.0) and end.logprob == pytest.approx(-1.0)


async def test_what_came_before_an_error_is_told() -> None:
    for broken in ('{"error": {"message": "out of memory", "code": 400}}', "no JSON"):
        text, end = await told(writes([piece("one"), piece(" two"), broken]))
        assert isinstance(text, Progress) and text.text == "one two"
        assert isinstance(end, Failure) and end.usage.completion == 2


async def test_a_job_that_is_stopped_tells_its_end_once() -> None:
    heard: Items = []
    async with serving(FakeServer(delay=0.05, reply=lambda prompt: "word " * 400)) as (_, worker):
        worker.begin(job(stream=True, max_tokens=400), heard.append)
        while not heard:
            await asyncio.sleep(0.01)
        await worker.cancel(1)
        while not isinstance(heard[-1], Result):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
    ends = [item for item in heard if not isinstance(item, Progress)]
    assert len(ends) == 1 and isinstance(ends[0], Result) and ends[0].finish == "cancelled"
    assert "".join(item.text for item in heard if isinstance(item, Progress)) == ends[0].value
