"""Several servers of one model behind one orchestrator: they share the work, and a header is read by one of them."""

from __future__ import annotations

import asyncio
from typing import Any

from plait import AsyncOrchestrator

from .fake_server import FakeServer


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
