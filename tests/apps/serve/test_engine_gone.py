"""A client that goes away, counted in the engine: tokens that it generates after the connection has closed."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from plait.runtime.client.config import BUNDLED_MODEL

pytestmark = [pytest.mark.engine, pytest.mark.own_engine]


async def test_the_engine_stops_within_two_tokens(serve):
    from plait.workers.engine import Engine

    engine = Engine(model=str(BUNDLED_MODEL))
    async with serve(workers=[engine]) as served:
        for stream in (True, False):
            late = [await _late(served, engine, stream) for _ in range(3)]
            assert sorted(late)[1] <= 2 * 4, late
        said = served.service.metrics.text().decode()
        assert 'plait_runs_total{planner="sample",status="cancelled"} 6.0' in said, said


async def _late(served, engine, stream: bool) -> int:
    """Return the tokens that were generated after the connection had closed."""
    body = {"model": "plait/sample:n=4", "messages": [{"role": "user", "content": "3 5 7 11 -> 24"}],
            "stream": stream, "plait": {"task": "countdown"}}  # fmt: skip
    before = engine.stats()["generated"]
    async with httpx.AsyncClient() as http:
        asking = asyncio.ensure_future(_read(http, f"{served.base}/chat/completions", body))
        while engine.stats()["generated"] - before < 8:
            assert not asking.done(), asking.result()
            await asyncio.sleep(0.0005)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    then = engine.stats()["generated"]
    while served.service.live:
        await asyncio.sleep(0.001)
    return engine.stats()["generated"] - then


async def _read(http, url, body) -> bytes:
    async with http.stream("POST", url, json=body) as answer:
        return b"".join([each async for each in answer.aiter_bytes()])
