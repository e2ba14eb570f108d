"""`GET /runs`, `GET /runs/new` and `POST /runs`: what the live page lists and asks, over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

from plait import AsyncOrchestrator, Config
from plait.workers.scripted import Reply, Scripted
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key


def asking(question: str, planner: str = "single", model: str = "") -> dict[str, str]:
    return {"text": question, "planner": planner, "model": model}


async def ended(http: httpx.AsyncClient, runs: int) -> dict:
    while True:
        said = (await http.get("/runs?scope=here")).json()
        if said["counts"] == {"now": 0, "past": runs}:
            return said
        await asyncio.sleep(0.01)


async def test_a_run_says_when_how_long_and_in_how_many_steps(serve):
    async with serve("answer: 4") as served, httpx.AsyncClient(base_url=served.url) as http:
        made = await http.post("/runs", json=asking("2 + 2?", "sample:n=3"))
        assert made.status_code == 201
        (row,) = (await ended(http, 1))["past"]
        created = datetime.fromisoformat(row.pop("created"))
        assert abs((datetime.now(UTC) - created).total_seconds()) < 3600
        assert 0 < row.pop("seconds") < 3600
        assert row == {
            "run": made.json()["run"], "status": "done", "planner": "sample", "model": "", "tokens": 6, "steps": 4,
            "text": "2 + 2?", "answer": "4", "here": True,
        }  # fmt: skip


async def test_the_index_of_the_journals_says_as_much_of_other_programs(serve, tmp_path):
    async with AsyncOrchestrator(config=Config(journal=tmp_path), workers=[Scripted([Reply(text="x")])]) as other:
        there = await other.run("theirs", planner="sample:n=2")
    async with serve("mine", journal=str(tmp_path)) as served, httpx.AsyncClient(base_url=served.url) as http:
        await http.post("/runs", json=asking("mine"))
        assert [row["text"] for row in (await ended(http, 1))["past"]] == ["mine"]
        said = (await http.get("/runs")).json()
        assert [row["text"] for row in said["past"]] == ["mine", "theirs"]
        row = said["past"][1]
        assert (row["run"], row["steps"], row["here"], row["seconds"] is not None) == (there.run, 3, False, True)
        assert (said["total"], said["more"]) == (2, False)


async def test_a_run_under_way_in_another_process_is_shown_as_one(serve, tmp_path):
    slow = Scripted([Reply(text="word " * 2000, tokens_per_second=20)])
    async with AsyncOrchestrator(config=Config(journal=tmp_path), workers=[slow]) as other:
        handle = await other.submit("theirs", watch=True)
        while not handle.tokens:
            await asyncio.sleep(0.01)
        async with serve("fine", journal=str(tmp_path)) as served, httpx.AsyncClient(base_url=served.url) as http:
            while (answer := await http.get(f"/runs/{handle.run}/data")).status_code == 404:
                await asyncio.sleep(0.01)
            data = answer.json()
            assert data["status"] == "running"
            assert data["notes"] == []
        handle.cancel()
        await handle


async def test_pages_are_cut_sorted_and_filtered_by_the_server(serve):
    replies = [Reply(text="w " * k, times=1) for k in (3, 1, 2)]
    async with serve(*replies) as served, httpx.AsyncClient(base_url=served.url) as http:
        for k, question in enumerate(("Alpha", "Beta", "Gamma"), 1):
            await http.post("/runs", json=asking(question))
            await ended(http, k)

        async def texts(query: str) -> list[str]:
            said = (await http.get(f"/runs?scope=here&{query}")).json()
            assert said["order"] == [row["run"] for row in said["past"]]
            return [row["text"] for row in said["past"]]

        assert await texts("") == ["Gamma", "Beta", "Alpha"]
        assert await texts("limit=2&after=1") == ["Beta", "Alpha"]
        assert await texts("sort=tokens") == ["Alpha", "Gamma", "Beta"]
        assert await texts("sort=text&up=true") == ["Alpha", "Beta", "Gamma"]
        assert await texts("words=gAM") == ["Gamma"]
        for query in ("sort=nothing", "limit=0", "limit=100000", "after=-1", f"words={'x' * 501}"):
            refused = await http.get(f"/runs?{query}")
            assert refused.status_code == 400, query
            assert query.partition("=")[0] in refused.json()["error"]["message"]


async def test_what_may_be_asked_for_is_what_the_menu_says(serve):
    keys = [new_key(), new_key()]
    tenants = (
        Tenant(name="ann", keys=(hashed(keys[0]),), planners=("single",)),
        Tenant(name="bob", keys=(hashed(keys[1]),)),
    )
    async with serve("fine", tenants=tenants) as served, httpx.AsyncClient(base_url=served.url) as http:
        assert (await http.get("/runs/new")).status_code == 401
        assert (await http.post("/runs", json=asking("x"))).status_code == 401
        heads = [{"authorization": f"Bearer {key}"} for key in keys]
        menus = [(await http.get("/runs/new", headers=head)).json() for head in heads]
        assert [each["name"] for each in menus[0]["planners"]] == ["single"]
        assert {"single", "sample"} < {each["name"] for each in menus[1]["planners"]}
        assert all(each["about"] for each in menus[1]["planners"])
        assert menus[0]["keys"] is True
        refused = await http.post("/runs", json=asking("x", "sample:n=2"), headers=heads[0])
        assert refused.status_code == 400
        assert (await http.post("/runs", json=asking("x", "sample:n=2"), headers=heads[1])).status_code == 201
        assert (await http.get("/runs", headers=heads[0])).json()["past"] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (asking(" \n"), 400),
        (asking("x", ""), 400),
        (asking("x", "nothing"), 400),
        (asking("x", "sample:n=9999"), 400),
        (asking("x", "sample:m=2"), 400),
        (asking("x", "fixed:path=/etc/passwd"), 400),
        ({**asking("x"), "budget": {}}, 400),
    ],
)
async def test_a_wrong_question_is_refused_in_words_and_starts_nothing(serve, body, status):
    async with serve("fine") as served, httpx.AsyncClient(base_url=served.url) as http:
        refused = await http.post("/runs", json=body)
        assert refused.status_code == status, refused.text
        assert refused.json()["error"]["message"]
        assert (await http.get("/runs")).json()["counts"] == {"now": 0, "past": 0}


async def test_a_page_of_another_port_cannot_use_the_cookie_of_a_browser(serve):
    key = new_key()
    async with serve("fine", tenants=(Tenant(name="ann", keys=(hashed(key),)),)) as served:
        async with httpx.AsyncClient(base_url=served.url) as http:
            assert (await http.post("/login", json={"key": key})).is_success
            own, foreign = served.url, "http://127.0.0.1:1"
            # A form of a page sends text/plain, which no browser asks about first.
            head = {"origin": foreign, "content-type": "text/plain"}
            refused = await http.post("/runs", content=b'{"text": "x", "planner": "single"}', headers=head)
            assert refused.status_code == 403
            assert (await http.post("/runs", json=asking("x"), headers={"origin": own})).status_code == 201
            through_a_proxy = {"origin": "https://plait.example", "sec-fetch-site": "same-origin"}
            assert (await http.post("/runs", json=asking("x"), headers=through_a_proxy)).status_code == 201
            await ended(http, 2)
