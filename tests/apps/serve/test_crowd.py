"""Many clients at once: none of their requests fails."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply

CLIENTS = 256


@pytest.mark.slow
async def test_256_clients_at_once_are_all_answered(serve: Any) -> None:
    reply = Reply(text="one two three", tokens_per_second=30)
    async with serve(reply) as served:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=300) as http:

            async def client(number: int) -> None:
                for stream in (False, True):
                    content = [{"role": "user", "content": f"client {number}"}]
                    body = {"model": "q", "messages": content, "stream": stream}
                    said = await http.post(f"{served.base}/chat/completions", json=body)
                    assert said.status_code == 200, said.text
                    if stream:
                        assert said.text.rstrip().endswith("data: [DONE]") and "error" not in said.text
                    else:
                        assert said.json()["choices"][0]["message"]["content"] == "one two three"

            await asyncio.gather(*map(client, range(CLIENTS)))
