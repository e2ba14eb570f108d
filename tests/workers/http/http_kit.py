"""What the tests of the HTTP worker share: a worker that was started on a server of ours, jobs, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall, Text, Tokens
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling
from plait.workers.http import Http
from plait.workers.http.usage_meter import ThroughputEstimate

from .fake_server import FakeServer

Items = list[Progress | Result | Failure]
SECRET = "sk-very-secret-4711"


@contextlib.asynccontextmanager
async def serving(server: FakeServer | None = None, **options: Any) -> AsyncIterator[tuple[FakeServer, Http]]:
    """A server and a started worker for it; what the start asked is forgotten."""
    options = {"backoff": 0.001, "start_timeout": 300.0, "stream_above_tokens": 0} | options
    async with server or FakeServer() as server:
        worker = Http(server.url, **options)
        try:
            await worker.start()
            server.requests.clear()
            server.times.clear()
            yield server, worker
        finally:
            await worker.close()


def job(prompt: str | tuple[Text | Tokens, ...] = "one two", attempt: int = 1, **fields: Any) -> Job:
    own = {key: fields.pop(key) for key in ("stream", "chat", "model", "salt") if key in fields}
    outer = {key: fields.pop(key) for key in ("seconds", "generated", "priority") if key in fields}
    think = ModelCall(prompt=prompt, sampling=Sampling(**fields), **own)
    return Job(attempt=attempt, run="r", step="r:s", op=think, **outer)


async def items(worker: Http, a_job: Job) -> Items:
    return [item async for item in worker.run(a_job)]


async def ask(worker: Http, *args: Any, **fields: Any) -> Result:
    (last,) = await items(worker, job(*args, **fields))
    assert isinstance(last, Result), last
    return last


async def fails(worker: Http, *args: Any, **fields: Any) -> Failure:
    (last,) = await items(worker, job(*args, **fields))
    assert isinstance(last, Failure), last
    return last


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.005)


def at_a_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate that what was broken off had made one token: by the clock it is more on a busy machine, and the two
    bounds of an estimate add up to all that was asked for only while it is less than half of that."""

    class Crawl(ThroughputEstimate):
        def estimate(self, seconds: float, max_tokens: int) -> int:
            return 1

    monkeypatch.setattr("plait.workers.http.request_sender.ThroughputEstimate", Crawl)


def counting(text: str = "alpha beta gamma delta") -> Any:
    return lambda prompt: text
