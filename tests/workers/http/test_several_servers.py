"""Several servers of one model behind one orchestrator: they share the work, and a header is read by one of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import EngineError

from .fake_server import FakeServer

DEAD = "http://127.0.0.1:9/v1"


async def test_runs_share_several_servers_and_a_header_is_read_by_one_of_them() -> None:
    """`base_url` names servers with commas between; without further ado a step goes where its prompt is cached."""
    header = "one two three four five six seven eight nine ten " * 20
    async with FakeServer(cached=3) as first, FakeServer(cached=3) as second:
        settings: dict[str, Any] = {"worker": "http", "base_url": f"{first.url}, {second.url}", "journal": "off"}
        async with AsyncOrchestrator(**settings, planner="single") as orchestrator:
            for each in (first, second):
                each.requests.clear()
            answers = await asyncio.gather(*(orchestrator.run(f"{header}{i}?") for i in range(8)))
            assert {answer.status for answer in answers} == {"done"}
            assert sorted((len(first.asked()), len(second.asked()))) == [0, 8]
            others = [orchestrator.run(f"{i} {header}") for i in range(8)]
            await asyncio.gather(*others)
            assert min(len(first.asked()), len(second.asked())) > 0


@pytest.mark.parametrize("dead_first", [False, True])
async def test_one_dead_server_of_two_does_not_stop_the_start(
    caplog: pytest.LogCaptureFixture, dead_first: bool
) -> None:
    async with FakeServer() as good:
        urls = ",".join([DEAD, good.url][:: 1 if dead_first else -1])
        async with AsyncOrchestrator(worker="http", base_url=urls, journal="off", planner="sample") as orchestrator:
            assert (await orchestrator.run("hello", n=4)).status == "done"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [f"{DEAD} cannot be reached" in each for each in warnings] == [True], warnings


async def test_several_servers_of_which_none_answers_end_the_start() -> None:
    with pytest.raises(EngineError, match="none of the servers answers"):
        async with AsyncOrchestrator(worker="http", base_url=f"{DEAD},http://127.0.0.1:10/v1", journal="off"):
            pass
