"""Two servers over one store, and one that is started again: responses and runs are everybody's who may see them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.core.errors import ConfigError
from plait.runtime.journal.journal import BYTES_BY_TENANT
from plait.runtime.journal.location import Database
from plait.runtime.journal.store_membership import Counters, acquire, release
from plait.workers.scripted import Reply
from plait_server.tenants import DAY_S, hashed
from tests.apps.serve.conftest import Serve, Served, _starting

openai: Any = pytest.importorskip("openai")


@pytest.fixture
def serve() -> Serve:
    return _starting()


async def test_a_response_outlives_its_server(serve: Serve, tmp_path: Path) -> None:
    where = str(tmp_path / "runs")
    async with serve("Hello Ada", journal=where) as served:
        first = await served.client().responses.create(model="q", input="my name is Ada")
        quiet = await served.client().responses.create(model="q", input="x", store=False)
    async with serve(Reply(when="(?s)Ada.*who", text="Ada"), Reply(text="nobody"), journal=where) as served:
        client = served.client()
        again = await client.responses.retrieve(first.id)
        assert again.output_text == "Hello Ada" and again.model_dump() == first.model_dump()
        then = await client.responses.create(model="q", input="who am I?", previous_response_id=first.id)
        assert then.output_text == "Ada"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(quiet.id)
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_another_server_reads_follows_and_cancels(serve: Serve, store: str) -> None:
    slow = Reply(text="word " * 500, tokens_per_second=100)
    async with serve(slow, journal=store) as one, serve(slow, journal=store) as two:
        begun = await one.client().responses.create(model="q", input="x", background=True, max_output_tokens=500)
        client = two.client()
        assert (await client.responses.retrieve(begun.id)).status in ("queued", "in_progress")
        deltas = 0
        stream = await client.responses.retrieve(begun.id, stream=True)
        async for event in stream:
            deltas += event.type == "response.output_text.delta"
            if deltas > 3:
                break
        await stream.close()
        ended = await client.responses.cancel(begun.id)
        assert ended.status == "cancelled" and ended.usage.output_tokens > 3
        rest = [event async for event in await client.responses.retrieve(begun.id, stream=True, starting_after=2)]
        assert rest[0].sequence_number == 3 and rest[-1].response.status == "cancelled"
        then = await one.client().responses.retrieve(begun.id)
        assert then.usage == ended.usage


async def test_a_tenant_sees_its_runs_on_every_server_and_no_others(serve: Serve, store: str) -> None:
    tenants = [{"name": name, "keys": [hashed(f"key-{name}")]} for name in ("ann", "bob")]
    slow = Reply(text="word " * 500, tokens_per_second=100)
    settings: dict[str, Any] = {"journal": store, "tenants": tenants}
    async with serve(slow, **settings) as one, serve(slow, **settings) as two, httpx.AsyncClient() as http:
        made = await one.client("key-ann").responses.create(model="q", input="mine", background=True)
        run = made.id.removeprefix("resp_")
        ann, bob = ({"authorization": f"Bearer key-{name}"} for name in ("ann", "bob"))

        async def runs(key: dict[str, str]) -> list[str]:
            listed = (await http.get(f"{two.url}/runs", headers=key)).json()
            return [row["run"] for row in (*listed["now"], *listed["past"])]

        while await runs(ann) != [run]:
            await asyncio.sleep(0.02)
        assert await runs(bob) == []
        shown = (await http.get(f"{two.url}/runs/{run}", headers=ann)).json()
        assert shown["status"] == "running" and [step["op"] for step in shown["steps"]] == ["think"]
        for path in (f"/runs/{run}", f"/runs/{run}/data", f"/runs/{run}/events", f"/runs/{run}/page"):
            assert (await http.get(two.url + path, headers=bob)).status_code == 404, path
        with pytest.raises(openai.NotFoundError):
            await two.client("key-bob").responses.retrieve(made.id)
        refused = await http.post(f"{two.url}/runs/{run}/cancel", headers=bob, json={})
        assert refused.status_code == 404
        assert (await http.post(f"{two.url}/runs/{run}/cancel", headers=ann, json={})).status_code == 200
        while (await two.client("key-ann").responses.retrieve(made.id)).status != "cancelled":
            await asyncio.sleep(0.05)
        while one.service._work:  # counts what the run took, which is not left behind by the other server
            await asyncio.sleep(0.01)


async def test_rates_and_the_days_tokens_are_counted_over_all_servers(serve: Serve, store: str) -> None:
    tenants = [
        {"name": "ann", "keys": [hashed("key-ann")], "requests_per_minute": 3, "tokens_per_day": 1000},
        {"name": "bob", "keys": [hashed("key-bob")], "tokens_per_day": 4},
    ]
    settings: dict[str, Any] = {"journal": store, "tenants": tenants}
    body: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "x"}]}

    async def asked(server: Served, name: str) -> Any:
        return await server.client(f"key-{name}").chat.completions.create(**body)

    async with serve("one two three four", **settings) as one, serve("one two three four", **settings) as two:
        if time.time() % 60 > 50:  # the minute is the clock's
            await asyncio.sleep(61 - time.time() % 60)
        for server in (one, two, one):
            await asked(server, "ann")
        with pytest.raises(openai.RateLimitError, match="rate limit of 3 requests per minute"):
            await asked(two, "ann")
        await asked(one, "bob")
        while one.service._work:
            await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError, match="4 tokens of today"):
            await asked(two, "bob")
    async with serve("one two three four", **settings) as again:
        with pytest.raises(openai.RateLimitError, match="4 tokens of today"):
            await asked(again, "bob")


async def test_bytes_of_journals_are_counted_over_all_processes_of_a_store(serve: Serve, store: str) -> None:
    """Another process knows of them when its first run has ended."""
    settings: dict[str, Any] = {
        "journal": store,
        "tenants": [{"name": name, "keys": [hashed(f"key-{name}")]} for name in ("ann", "bob")],
        "journal_bytes_per_tenant": 60_000,
    }

    async def asked(server: Served, name: str, text: str = "x") -> None:
        ask: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": text}]}
        await server.client(f"key-{name}").chat.completions.create(**ask)
        server.service.orchestrator._driver.recorder.flush()  # pyright: ignore[reportOptionalMemberAccess]
        while server.service._work:
            await asyncio.sleep(0.01)

    async def exceed_limit(server: Served) -> None:
        for _ in range(20):
            await asked(server, "ann", "".join(map(chr, range(0x4E00, 0x7E00))))

    BYTES_BY_TENANT.clear()
    async with serve("fine", **settings) as one:
        with pytest.raises(openai.RateLimitError, match="bytes to journals today"):
            await exceed_limit(one)
    BYTES_BY_TENANT.clear()  # as in a process that has written nothing
    async with serve("fine", **settings) as again:
        await asked(again, "ann")
        with pytest.raises(openai.RateLimitError, match="bytes to journals today"):
            await asked(again, "ann")
        await asked(again, "bob")
        await asked(again, "bob")


async def test_completions_are_listed_page_by_page_on_every_server(
    serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers take turns in keeping them. A list that looks for notes reads several pages of the store."""
    monkeypatch.setattr("plait_server.stored_completions.MAX_PAGE_SIZE", 4)
    tenants = [{"name": name, "keys": [hashed(f"key-{name}")]} for name in ("ann", "bob")]
    settings: dict[str, Any] = {"journal": store, "tenants": tenants}
    body: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "x"}], "store": True}
    async with serve("fine", **settings) as one, serve("fine", **settings) as two:
        ann = [server.client("key-ann").chat.completions for server in (one, two)]
        made = [(await ann[n % 2].create(**body, metadata={"third": str(n % 3)})).id for n in range(11)]
        await two.client("key-bob").chat.completions.create(**body)
        for chats in ann:
            listed = [kept.id async for kept in await chats.list(limit=3)]
            assert sorted(listed) == sorted(made) and len(listed) == 11, "each once, and no other tenant's"
            assert [kept.id async for kept in await chats.list(limit=5, order="desc")] == listed[::-1]
            third = [kept.id async for kept in await chats.list(limit=2, extra_query={"metadata[third]": "2"})]
            assert sorted(third) == sorted(made[2::3])
        await ann[0].delete(made[0])
        await ann[1].update(made[1], metadata={"third": "2"})
        third = {kept.id async for kept in await ann[0].list(extra_query={"metadata[third]": "2"})}
        assert third == {made[1], *made[2::3]}
        with pytest.raises(openai.NotFoundError):
            await ann[1].retrieve(made[0])
        with pytest.raises(openai.NotFoundError):
            await two.client("key-bob").chat.completions.list(after=made[3])


async def test_runs_of_two_servers_share_what_is_left_of_the_day(serve: Serve, store: str) -> None:
    """Before, each server knew of its own running runs alone: two of 300 tokens used 600 of a day's 400."""
    tenants = [{"name": "ann", "keys": [hashed("key-ann")], "tokens_per_day": 400, "tokens_per_run": 300}]
    settings: dict[str, Any] = {"journal": store, "tenants": tenants}
    slow = Reply(text="word " * 300, tokens_per_second=200)

    async def used(server: Served) -> int:
        body: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "x"}]}
        said = await server.client("key-ann").chat.completions.create(**body)
        return said.usage.completion_tokens

    async with serve(slow, **settings) as one, serve(slow, **settings) as two:
        first = asyncio.create_task(used(one))
        while not one.service.live:
            await asyncio.sleep(0.01)
        spent = await used(two) + await first
        assert 300 < spent <= 400 + 2 * 16, "a run ends with the report that reaches its limit, of up to 16 tokens"
        for server in (one, two):
            while server.service._work:
                await asyncio.sleep(0.01)
        assert _held(store) == 0, "nothing stays reserved"


async def test_a_request_that_is_refused_holds_nothing_in_the_store(serve: Serve, store: str) -> None:
    tenants = [{"name": "ann", "keys": [hashed("key-ann")], "tokens_per_day": 100}]
    plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "none"}}], "output": "a"}
    async with serve("fine", journal=store, tenants=tenants) as served:
        with pytest.raises(openai.BadRequestError):
            await served.client("key-ann").responses.create(model="q", input="x", extra_body={"plait": {"plan": plan}})
        assert _held(store) == 0
        assert (await served.client("key-ann").responses.create(model="q", input="x")).output_text == "fine"


async def test_use_that_could_not_be_counted_is_counted_later(
    serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, what a run had taken was forgotten if the database was away when the run ended."""
    tenants = [{"name": "ann", "keys": [hashed("key-ann")], "tokens_per_day": 100}]
    async with serve("one two three four", journal=store, tenants=tenants) as served:
        counters: Any = served.service._counters
        add, ask = counters.add, served.client("key-ann").responses.create

        def away(name: str, span_s: int, amounts: tuple[float, ...], *held: Any) -> Any:
            if any(amounts) and name.startswith("used"):
                raise ConfigError("the database is away")
            return add(name, span_s, amounts, *held)

        monkeypatch.setattr(counters, "add", away)
        await ask(model="q", input="x")
        while served.service._work:
            await asyncio.sleep(0.01)
        user = served.service.tenants.users["ann"]
        assert add("used ann", DAY_S, (0.0,))[1:] == (0.0,) and user.unsent["tokens"] == 4
        monkeypatch.undo()
        await ask(model="q", input="x")
        while served.service._work:
            await asyncio.sleep(0.01)
        assert add("used ann", DAY_S, (0.0,))[1:] == (8.0,) and user.unsent["tokens"] == 0


def test_what_a_dead_server_holds_is_free_again(store: str) -> None:
    """A server that was killed does not lock a tenant out until midnight."""
    here, other = (Counters(Database(store)) for _ in range(2))
    member = acquire(Database(store))
    try:
        with _connection(store) as db:
            assert here.reserve("used ann", DAY_S, 0, 0.0, 60.0, 100.0) == 60
            assert other.reserve("used ann", DAY_S, 0, 0.0, 60.0, 100.0) == 40
            other.add("used ann", DAY_S, (10.0,), (30.0,))
            assert here.reserve("used ann", DAY_S, 0, 60.0, 60.0, 100.0) == 60, "10 are used, and 30 held by the other"
            row = "INSERT INTO plait.processes (id, host, pid, lease) VALUES ('dead', 'h', 1, '1 h')"
            db.execute(row)
            db.execute("UPDATE plait.holdings SET process = 'dead' WHERE holder = %s", (other._holder,))
            assert here.reserve("used ann", DAY_S, 0, 60.0, 60.0, 100.0) == 60, "it may live"
            db.execute("UPDATE plait.processes SET beat = now() - interval '2 h' WHERE id = 'dead'")
            assert here.reserve("used ann", DAY_S, 0, 60.0, 60.0, 100.0) == 90
            here.add("used ann", DAY_S, (0.0,), (0.0,))
            db.execute("UPDATE plait.processes SET beat = now() WHERE id = 'dead'")
            assert here.reserve("used ann", DAY_S, 0, 0.0, 60.0, 100.0) == 30, "half of what is free is left to others"
            db.execute("UPDATE plait.processes SET over = true WHERE id = 'dead'")
            here.reserve("used ann", DAY_S, 0, 0.0, 1.0, 100.0)
            assert db.execute("SELECT count(*) FROM plait.holdings").fetchone() == (1,), "and then forgotten"
    finally:
        release(member)


async def test_a_server_with_a_wrong_clock_begins_no_new_day(serve: Serve, store: str) -> None:
    """Before, its day was its own, and in counting for it it deleted what all servers had counted today."""
    tenants = [{"name": "ann", "keys": [hashed("key-ann")], "tokens_per_day": 100}]
    body: dict[str, Any] = {"model": "q", "messages": [{"role": "user", "content": "x"}]}
    settings: dict[str, Any] = {"journal": store, "tenants": tenants}
    async with serve("word " * 60, **settings) as one, serve("word " * 60, **settings) as two:

        async def spent_on(server: Served) -> int:
            said = await server.client("key-ann").chat.completions.create(**body)
            while one.service._work or two.service._work:
                await asyncio.sleep(0.01)
            return said.usage.completion_tokens

        spent, user = await spent_on(two), one.service.tenants.users["ann"]
        for hours in (24, -24, 0):
            user._clock = lambda: time.time() + 3600 * hours  # noqa: B023
            if hours == 24:
                spent += await spent_on(one)
            for server in (one, two):
                with pytest.raises(openai.RateLimitError):
                    await server.client("key-ann").chat.completions.create(**body)
        assert 100 <= spent <= 100 + 16, "a run ends with the report that reaches its limit, of up to 16 tokens"


def test_counters_outlive_a_clock_of_the_database_that_is_wrong_for_a_while(store: str) -> None:
    """A new day may begin early, but what was used on the other one is there when the clock is right again."""
    counters = Counters(Database(store))
    now, _ = counters.add("used ann", DAY_S, (5.0,))
    assert abs(now - time.time()) < 60
    with _connection(store) as db:
        for days in (-3, -2, -1, 1):
            row = "INSERT INTO plait.counters SELECT name, span + %s, place, %s FROM plait.counters WHERE n = 5"
            db.execute(row, (days, 10.0 + days))
        assert counters.add("used ann", DAY_S, (2.0,))[1:] == (7.0,)
        assert counters.reserve("used ann", DAY_S, 0, 0.0, 60.0, 100.0) == 60
        assert counters.reserve("used ann", DAY_S, 0, 0.0, 100.0, 100.0) == 93
        left = db.execute("SELECT n FROM plait.counters ORDER BY span").fetchall()
        assert left == [(8.0,), (9.0,), (7.0,), (11.0,)], "the oldest is deleted"


def _connection(store: str) -> Any:
    import psycopg

    return psycopg.connect(store, autocommit=True)


def _held(store: str) -> float:
    with _connection(store) as db:
        return db.execute("SELECT coalesce(sum(n), 0) FROM plait.holdings").fetchone()[0]
