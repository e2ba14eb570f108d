"""A request has the same status whether the server has keys or not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply, Scripted
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key

KEY = new_key()
HEADERS = {"authorization": f"Bearer {KEY}"}
MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: list[tuple[str, dict[str, Any], int]] = [
    ("chat/completions", {"messages": MESSAGES}, 200),
    ("chat/completions", {"messages": MESSAGES, "n": 2}, 200),
    ("chat/completions", {"messages": MESSAGES, "n": 2, "stream": True}, 200),
    ("chat/completions", {"messages": MESSAGES, "n": 2, "seed": 7}, 200),
    ("chat/completions", {"messages": MESSAGES, "n": 0}, 400),
    ("completions", {"prompt": "once"}, 200),
    ("completions", {"prompt": "once", "n": 2}, 200),
    ("completions", {"prompt": ["once", "twice"]}, 200),
    ("completions", {"prompt": ["once", "twice"], "n": 2, "stream": True}, 200),
    ("responses", {"input": "hi"}, 200),
    ("responses", {"input": "hi", "stream": True}, 200),
    ("responses", {"input": "hi", "n": 2}, 200),
    ("messages", {"messages": MESSAGES, "max_tokens": 9}, 200),
    ("messages", {"messages": MESSAGES, "max_tokens": 9, "stream": True}, 200),
    ("messages", {"messages": MESSAGES, "max_tokens": 9, "n": 2}, 200),
    ("messages", {"messages": MESSAGES, "max_tokens": 9, "n": 10**12}, 200),
    ("messages", {"messages": MESSAGES, "max_tokens": 9, "n": "many"}, 200),
]


def tenants(*keys: str) -> tuple[Tenant, ...]:
    return tuple(Tenant(name=f"tenant-{place}", keys=(hashed(key),)) for place, key in enumerate(keys))


@pytest.mark.parametrize(("path", "body", "status"), REQUESTS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("keys", [False, True], ids=["open", "keys"])
async def test_the_status_does_not_depend_on_keys(
    serve: Any, keys: bool, path: str, body: dict[str, Any], status: int
) -> None:
    async with serve(tenants=tenants(KEY) if keys else ()) as served, httpx.AsyncClient() as http:
        given = await http.post(f"{served.base}/{path}", json={"model": "q", **body}, headers=HEADERS if keys else {})
    assert given.status_code == status, given.text
    if status == 200 and "stream" not in body and "choices" in given.json():
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [""]
        assert len(given.json()["choices"]) == len(prompts) * body.get("n", 1)


async def test_the_choices_of_a_tenant_weigh_as_one_run_of_the_tenant(serve: Any) -> None:
    """They are in the tenant's share: requests with `n` get it no more slots than its weight, and its runs stay its
    own in a store, which goes by the share."""
    slow = Scripted([Reply(text="fine", delay=30.0)], slots=1)
    other = new_key()
    async with serve(workers=[slow], tenants=tenants(KEY, other)) as served, httpx.AsyncClient() as http:
        body = {"model": "q", "messages": MESSAGES, "n": 3}
        for key in (KEY, KEY, other):
            request = http.post(
                f"{served.base}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
            )
            served.clients.push_async_callback(_cancel, asyncio.ensure_future(request))
        while len(served.service.live) < 9:
            await asyncio.sleep(0.005)
        shares = Counter(run.handle.request.fairness_group for run in served.service.live.values())
        for run in list(served.service.live.values()):
            run.handle.cancel()
    assert shares == {"tenant-0": 6, "tenant-1": 3}


@pytest.mark.without_keys("with keys all runs of a tenant are in the tenant's group")
async def test_without_keys_the_choices_of_a_request_weigh_as_one_run(serve: Any) -> None:
    slow = Scripted([Reply(text="fine", delay=30.0)], slots=1)
    async with serve(workers=[slow]) as served, httpx.AsyncClient() as http:
        for n in (3, 2, 1):
            body = {"model": "q", "messages": MESSAGES, "n": n}
            request = http.post(f"{served.base}/chat/completions", json=body)
            served.clients.push_async_callback(_cancel, asyncio.ensure_future(request))
        while len(served.service.live) < 6:
            await asyncio.sleep(0.005)
        shares = Counter(run.handle.request.fairness_group for run in served.service.live.values())
        for run in list(served.service.live.values()):
            run.handle.cancel()
    assert sorted(shares.values()) == [1, 2, 3] and shares[""] == 1


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
