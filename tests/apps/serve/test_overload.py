"""A full queue is said to clients with a status and a time after which to come again."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from plait.workers.scripted import Reply, Scripted


async def test_a_full_queue_is_503_with_the_seconds_until_there_is_room(serve: Any) -> None:
    worker = Scripted([Reply(text="fine", delay=0.3)], slots=1)
    async with serve(workers=[worker], config={"max_waiting": 1}) as served, httpx.AsyncClient(timeout=300) as http:

        async def ask(i: int) -> httpx.Response:
            body = {"model": "q", "messages": [{"role": "user", "content": f"{i}"}]}
            return await http.post(f"{served.base}/chat/completions", json=body)

        assert (await ask(0)).status_code == 200
        answers = await asyncio.gather(*map(ask, range(1, 6)))
        refused = [each for each in answers if each.status_code == 503]
        assert len(refused) == 3 and sum(each.status_code == 200 for each in answers) == 2
        for each in refused:
            assert each.json()["error"]["code"] == "overloaded" and "max_waiting" in each.json()["error"]["message"]
            assert each.headers["x-should-retry"] == "true" and int(each.headers["retry-after"]) >= 1
