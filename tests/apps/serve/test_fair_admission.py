"""One tenant's burst does not make another wait, and takes no more than its part of the server.

The server is a process of its own. Measured is the processor time of its main thread from before a request is sent
until its answer is there: what else this machine does changes nothing. `PLAIT_TEST_FLOOD=10000` sends that many.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply, Scripted
from plait_server.admission import RequestAdmission, TenantLoad
from plait_server.errors import ApiError
from plait_server.settings import Settings, Tenant
from plait_server.tenants import Tenants, hashed, new_key
from tests.apps.serve.processes import serving, worked

ANN, BOB = new_key(), new_key()
ASK = {"model": "q", "messages": [{"role": "user", "content": "hello"}]}
REQUESTS = int(os.environ.get("PLAIT_TEST_FLOOD", "300"))
BOUND = 0.05


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def tenants(**ann: Any) -> tuple[Tenant, ...]:
    return (Tenant(name="ann", keys=(hashed(ANN),), **ann), Tenant(name="bob", keys=(hashed(BOB),)))


def users(**ann: Any) -> tuple[TenantLoad, TenantLoad]:
    made = Tenants(Settings(tenants=tenants(**ann))).users
    return made["ann"].load, made["bob"].load


async def flood(url: str, key: str, requests: int, connections: int = 1000) -> Counter[str]:
    """Send requests on many connections, as bytes: the client costs little beside the server."""
    at = httpx.URL(url)
    body = json.dumps(ASK).encode()
    made = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: {at.host}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body  # fmt: skip
    statuses: Counter[str] = Counter()
    left = [requests]

    async def one() -> None:
        reader, writer = await asyncio.open_connection(at.host, at.port)
        while left[0] > 0:
            left[0] -= 1
            writer.write(made)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            statuses[head.split()[1].decode()] += 1
        writer.close()

    await asyncio.gather(*(one() for _ in range(min(requests, connections))))
    return statuses


async def measure(http: httpx.AsyncClient, pid: int) -> float:
    before = worked(pid)
    answer = await http.post("/v1/chat/completions", json=ASK, headers=headers(BOB), timeout=300)
    assert answer.status_code == 200, answer.text
    return worked(pid) - before


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


async def test_a_burst_of_one_tenant_does_not_delay_another(tmp_path: Path) -> None:
    lines = "".join(
        f'\n[[serve.tenants]]\nname = "{name}"\nkeys = ["{hashed(key)}"]\nsalted = false\n'
        for name, key in (("ann", ANN), ("bob", BOB))
    )
    async with serving(tmp_path, settings=lines) as (server, url, _), httpx.AsyncClient(base_url=url) as http:
        quiet = [await measure(http, server.pid) for _ in range(30)][10:]
        sent = asyncio.create_task(flood(url, ANN, REQUESTS))
        beside: list[float] = []
        while not sent.done():
            beside.append(await measure(http, server.pid))
        sys.stdout.write(f"quiet {p99(quiet):.3f} s, beside {p99(beside):.3f} s of {len(beside)}: {await sent}\n")
        assert p99(beside) <= 2 * p99(quiet) + BOUND, sorted(beside)[-10:]


async def test_turns_go_by_weight_and_one_begins_in_each_iteration() -> None:
    ann, bob = users(fairness_weight=3.0)
    admission, order, now = RequestAdmission(100, 1000), list[str](), [0]

    async def one(tenant: TenantLoad) -> None:
        async with admission.turn(tenant):
            order.append(f"{'ann' if tenant is ann else 'bob'} {now[0]}")

    async def count() -> None:
        while True:
            now[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(one(tenant) for tenant in (*[ann] * 40, *[bob] * 10)))
    counting.cancel()
    names = [each.split()[0] for each in order]
    assert names[:1] == ["ann"] and Counter(names[:12]) == {"ann": 9, "bob": 3} and Counter(names)["bob"] == 10
    assert len({each.split()[1] for each in order}) == 50, "two turns in one iteration"


async def test_a_tenant_has_one_turn_at_a_time_and_a_cancelled_one_is_no_loss() -> None:
    ann, bob = users()
    admission, held = RequestAdmission(100, 1000), asyncio.Event()

    async def hold() -> None:
        async with admission.turn(ann):
            await held.wait()

    async def one(tenant: TenantLoad) -> str:
        async with admission.turn(tenant):
            return "ann" if tenant is ann else "bob"

    holding = asyncio.ensure_future(hold())
    await asyncio.sleep(0)
    second, third = asyncio.ensure_future(one(ann)), asyncio.ensure_future(one(ann))
    assert await one(bob) == "bob" and not second.done()  # ann's turn is in a thread, say: bob does not wait for it
    second.cancel()
    held.set()
    assert await third == "ann" and await asyncio.wait_for(one(ann), 10) == "ann"
    await holding


async def test_bytes_of_bodies_are_counted_until_the_last_holder_ends() -> None:
    ann, _ = users()
    admission = RequestAdmission(2, 1000)
    with admission.request(ann) as place:
        place.body.add(900)
        place.body.hold()  # a run in the background
        with admission.request(ann) as other, pytest.raises(ApiError) as refused:
            other.body.add(101)
        assert refused.value.status == 429 and int(refused.value.headers["retry-after"]) > 0
        with admission.request(ann), pytest.raises(ApiError, match="2 of your requests"), admission.request(ann):
            pass
    assert ann.body_bytes == 900 and ann.requests == 0
    place.body.release()
    assert ann.body_bytes == 0


async def test_no_tenant_fills_the_server(serve: Any) -> None:
    slow = Scripted([Reply(text="fine", delay=30.0, times=5), Reply(text="fine")], slots=64)
    async with (
        serve(workers=[slow], tenants=tenants(), runs=8) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        body = {"model": "q", "input": "x", "background": True}
        answers = [await http.post("/v1/responses", json=body, headers=headers(ANN)) for _ in range(9)]
        assert Counter(each.status_code for each in answers) == {200: 4, 429: 5}
        assert {each.headers.get("retry-after") for each in answers if each.status_code == 429} == {"1"}
        assert "[serve]" not in answers[-1].text and "of your runs are running" in answers[-1].text
        for _ in range(3):
            await http.post("/v1/responses", json=body, headers=headers(BOB))
        assert Counter(run.user.name for run in served.service.live.values())["bob"] >= 1
        while served.service.live:
            for run in list(served.service.live.values()):
                run.handle.cancel()
            await asyncio.sleep(0.005)


async def test_a_tenant_without_a_place_is_refused_before_its_body_is_read(serve: Any) -> None:
    slow = Scripted([Reply(text="fine", delay=30.0)], slots=64)
    async with serve(workers=[slow], tenants=tenants(runs=1)) as served, httpx.AsyncClient() as http:
        made = await http.post(f"{served.base}/responses", json={"model": "q", "input": "x", "background": True},
                               headers=headers(ANN))  # fmt: skip
        assert made.status_code == 200
        at = httpx.URL(served.url)
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write((f"POST /v1/chat/completions HTTP/1.1\r\nHost: {at.host}\r\nAuthorization: Bearer {ANN}\r\n"
                      "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n").encode())  # fmt: skip
        assert b" 429 " in await asyncio.wait_for(reader.readline(), 30)
        writer.close()
        cancelled = await http.post(f"{served.base}/responses/{made.json()['id']}/cancel", headers=headers(ANN))
        assert cancelled.status_code == 200  # what frees a place needs none


async def test_bodies_of_running_requests_are_bounded_by_tenant(serve: Any) -> None:
    slow = Scripted([Reply(text="fine", delay=30.0, times=1), Reply(text="fine")], slots=64)
    async with (
        serve(workers=[slow], tenants=tenants(), body_bytes_per_tenant=3000) as served,
        httpx.AsyncClient(base_url=served.url) as http,
    ):
        body = {"model": "q", "input": "x" * 2000, "background": True}
        made = await http.post("/v1/responses", json=body, headers=headers(ANN))
        refused = await http.post("/v1/responses", json=body, headers=headers(ANN))
        assert (made.status_code, refused.status_code) == (200, 429) and refused.headers["retry-after"] == "1"
        assert (
            await http.post("/v1/responses", json={**body, "background": False}, headers=headers(BOB))
        ).status_code == 200
        await http.post(f"/v1/responses/{made.json()['id']}/cancel", headers=headers(ANN))
        assert (
            await http.post("/v1/responses", json={**body, "background": False}, headers=headers(ANN))
        ).status_code == 200
        assert all(user.load.body_bytes == 0 for user in served.service.tenants.users.values())
