"""Who may allow a call over the server: never who asked for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait import ToolContext, tool
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key

ANN, BOB, EVE, ROOT = (new_key() for _ in range(4))
PLAN = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "pay", "args": {"to": "mallory"}}}], "output": "a"}
PAID: list[str] = []


@tool(approve=True, side_effects=True)
def pay(to: str) -> str:
    """Pay somebody."""
    PAID.append(to)
    return f"paid {to}"


@tool
async def wonder(ctx: ToolContext) -> str:
    """Ask something that is no approval."""
    return str(await ctx.ask("Go on?"))


def tenants(**ann: bool) -> tuple[Tenant, ...]:
    return (
        Tenant(name="ann", keys=(hashed(ANN),), **ann),
        Tenant(name="bob", keys=(hashed(BOB),), approves=True),
        Tenant(name="eve", keys=(hashed(EVE),)),
        Tenant(name="root", keys=(hashed(ROOT),), admin=True),
    )


async def _asked(http: httpx.AsyncClient, served, key: str = "") -> tuple[asyncio.Task[httpx.Response], str]:
    PAID.clear()
    body = {"model": "q", "input": "x", "plait": {"plan": PLAN}}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    asks = asyncio.create_task(http.post(f"{served.url}/v1/responses", headers=headers, json=body, timeout=300))
    while not any(each.handle.questions for each in served.service.live.values()):
        await asyncio.sleep(0.01)
        assert not asks.done(), asks.result().text
    return asks, next(iter(served.service.live))


@pytest.mark.parametrize("approves", [False, True])
async def test_who_asks_does_not_approve(serve, tmp_path: Path, approves: bool):
    journal = str(tmp_path / "j")
    async with serve(tenants=tenants(approves=approves), tools=[pay], journal=journal) as served:
        async with httpx.AsyncClient() as http:
            asks, run = await _asked(http, served, ANN)

            async def order(key: str, verb: str, **body: object) -> int:
                headers = {"authorization": f"Bearer {key}"}
                return (await http.post(f"{served.url}/runs/{run}/{verb}", headers=headers, json=body)).status_code

            assert await order(ANN, "answer", value=True) == 403, "who asked"
            assert await order(ANN, "answer", value=True, question=f"{run}:a?approve") == 403
            assert await order(ANN, "answer", value={"args": {"to": "ann"}}) == 403
            assert await order(EVE, "answer", value=True) >= 400, "another, without the right"
            assert await order(ROOT, "answer", value=True) == 403, "who sees all does not approve for that"
            assert await order(BOB, "cancel") >= 400, "who approves does not steer"
            assert not PAID
            seen = await http.get(f"{served.url}/runs?past=false", headers={"authorization": f"Bearer {BOB}"})
            (row,) = seen.json()["now"]
            assert row["run"] == run and row["questions"][0]["call"] == {"tool": "pay", "args": {"to": "mallory"}}
            assert await order(BOB, "answer", value=True) == 200
            assert (await asks).status_code == 200 and PAID == ["mallory"]
    (entry,) = entries(Path(journal))
    _, answered = [note for note in Journal(entry.path).notes(run) if note.kind != "intent"]
    assert answered.kind == "answered"
    said: Any = answered.note
    assert said["by"]["name"] == "tenant bob" and said["value"] == {"approved": True} and said["at"] > 1.7e9
    assert said["call"] == {"tool": "pay", "args": {"to": "mallory"}}


@pytest.mark.parametrize("is_open", [False, True])
async def test_without_tenants_the_operator_approves_but_not_whoever_reaches_an_open_server(serve, is_open: bool):
    async with serve(tools=[pay], open=is_open) as served, httpx.AsyncClient() as http:
        asks, run = await _asked(http, served)
        said = await http.post(f"{served.url}/runs/{run}/answer", json={"value": True})
        if is_open:
            assert said.status_code == 403 and not PAID
            served.service.orchestrator.runs[run].cancel()
        else:
            assert said.status_code == 200
        await asks
        assert PAID == ([] if is_open else ["mallory"])


async def test_who_approves_answers_nothing_else_in_anothers_run(serve):
    plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "wonder", "args": {}}}], "output": "a"}
    async with serve(tenants=tenants(), tools=[wonder]) as served, httpx.AsyncClient() as http:
        body = {"model": "q", "input": "x", "plait": {"plan": plan}}
        ann, bob = ({"authorization": f"Bearer {key}"} for key in (ANN, BOB))
        asks = asyncio.create_task(http.post(f"{served.url}/v1/responses", headers=ann, json=body, timeout=300))
        while not any(each.handle.questions for each in served.service.live.values()):
            await asyncio.sleep(0.01)
            assert not asks.done(), asks.result().text
        url = f"{served.url}/runs/{next(iter(served.service.live))}/answer"
        assert (await http.post(url, headers=bob, json={"value": "yes"})).status_code in (400, 404)
        assert (await http.post(url, headers=ann, json={"value": "yes"})).status_code == 200
        await asks
