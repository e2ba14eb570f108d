"""Chat completions that are kept: read, listed, given other notes, deleted, by the `openai` package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.core.errors import ConfigError
from plait.workers.scripted import Reply
from plait_server import response_store, service
from plait_server.documents import Documents
from plait_server.response_store import ResponseStore, StoredResponse
from plait_server.settings import Settings, Tenant
from plait_server.tenants import Tenants, hashed

openai: Any = pytest.importorskip("openai")
ASK: Any = [{"role": "user", "content": "?"}]


@pytest.mark.parametrize("journal", ["off", "on"])
async def test_a_completion_is_kept_where_its_body_says_so(serve: Any, journal: str, tmp_path: Path) -> None:
    where = "off" if journal == "off" else str(tmp_path / "runs.db")
    async with serve("one two", journal=where) as served:
        chats = served.client().chat.completions
        unkept = await chats.create(model="q", messages=ASK)
        made = [await chats.create(model="q", messages=ASK, store=True, metadata={"n": str(n)}, n=1) for n in range(3)]
        first = made[0]
        assert (await chats.retrieve(first.id)).choices[0].message.content == "one two"
        with pytest.raises(openai.NotFoundError, match="there is no chat completion"):
            await chats.retrieve(unkept.id)
        listed = [each.id async for each in await chats.list(limit=2)]
        assert sorted(listed) == sorted(each.id for each in made), "page by page"
        newest = [each.id async for each in await chats.list(order="desc", limit=1)]
        assert newest == listed[::-1]
        assert [each.id async for each in await chats.list(extra_query={"metadata[n]": "1"})] == [made[1].id]
        assert not [each.id async for each in await chats.list(model="other")]
        (message,) = [each async for each in await chats.messages.list(first.id)]
        assert message.content == "?" and message.role == "user" and message.id
        await chats.update(first.id, metadata={"mine": "yes"})
        assert (await chats.retrieve(first.id)).metadata == {"mine": "yes"}
        assert (await chats.delete(first.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await chats.retrieve(first.id)
        assert len([each async for each in await chats.list()]) == 2


async def test_a_stream_is_kept_before_its_last_event(serve: Any) -> None:
    async with serve(Reply(text="one two three", tokens_per_second=200)) as served:
        chats, run = served.client().chat.completions, ""
        async for chunk in await chats.create(model="q", messages=ASK, store=True, stream=True, n=2):
            run = chunk.id
        assert [each.message.content for each in (await chats.retrieve(run)).choices] == ["one two three"] * 2


async def told(chats: Any, stream: bool) -> None:
    made = await chats.create(model="q", messages=ASK, store=True, stream=stream)
    async for _ in made:
        pass


@pytest.mark.parametrize("path", ["chat/completions", "responses", "responses, streamed"])
async def test_what_was_confirmed_is_on_the_disk(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A server that is killed after its answer must not lose what the answer says is stored."""
    put, slow = Documents.put, threading.Event()

    def put_late(*arguments: Any) -> None:
        slow.wait(0.3)
        put(*arguments)

    monkeypatch.setattr(Documents, "put", put_late)
    monkeypatch.setattr(response_store, "RETRY_INTERVAL_S", 0.1)
    where = tmp_path / "runs.db"
    async with serve("one two", journal=str(where)) as served, httpx.AsyncClient(timeout=30) as http:
        path, stream, _ = path.partition(", streamed")
        body = {"model": "q", "store": True, "messages" if "chat" in path else "input": ASK, "stream": bool(stream)}
        said = await http.post(f"{served.base}/{path}", json=body)
        assert said.status_code == 200
        name = json.loads(said.text.rpartition("data: ")[2])["response"]["id"] if stream else said.json()["id"]
        there = Documents(where, "completion" if "chat" in path else "response").get(name)
        assert there is not None and b"one two" in there[2]
        monkeypatch.setattr(Documents, "put", lambda *_: (_ for _ in ()).throw(ConfigError("the disk is full")))
        failed = await http.post(f"{served.base}/{path}", json=body)
        assert "response.completed" in failed.text if stream else failed.status_code == 503
        if stream:  # the answer was there before the trouble was: it is stored when that is over
            monkeypatch.setattr(Documents, "put", put)
            name = json.loads(failed.text.rpartition("data: ")[2])["response"]["id"]
            async with asyncio.timeout(30):
                while (there := Documents(where, "response").get(name)) is None:
                    await asyncio.sleep(0.05)
            assert b"one two" in there[2]


async def test_what_failed_is_not_kept(serve: Any) -> None:
    async with serve(Reply(text="no memory", finish="error")) as served:
        chats = served.client().chat.completions
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="the model's server failed"):
                await told(chats, stream)
        assert not [each async for each in await chats.list()]


async def test_completions_outlive_the_process(serve: Any, tmp_path: Path) -> None:
    journal = str(tmp_path / "runs.db")
    async with serve("one", journal=journal) as served:
        made = await served.client().chat.completions.create(model="q", messages=ASK, store=True)
    async with serve("two", journal=journal) as served:
        chats = served.client().chat.completions
        assert (await chats.retrieve(made.id)).choices[0].message.content == "one"
        assert [each.id async for each in await chats.list()] == [made.id]


async def test_a_tenant_sees_its_own_alone(serve: Any) -> None:
    tenants = tuple(Tenant(name=name, keys=(hashed(name),)) for name in ("ann", "ben"))
    async with serve("one", tenants=tenants) as served:
        made = await served.client("ann").chat.completions.create(model="q", messages=ASK, store=True)
        ben = served.client("ben").chat.completions
        assert not [each async for each in await ben.list()]
        for asked in (ben.retrieve(made.id), ben.delete(made.id), ben.update(made.id, metadata={}),
                      ben.messages.list(made.id), ben.list(after=made.id)):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await asked
        assert (await served.client("ann").chat.completions.retrieve(made.id)).metadata == {}


async def test_a_list_reads_the_heads_of_what_it_shows_alone(tmp_path: Path) -> None:
    """Whole documents hold conversations of megabytes; a list that parses them stands on the loop."""
    documents = Documents(tmp_path, "completion")
    for number in range(50):
        labels = {"metadata.k": "even" if number % 2 == 0 else "odd", "model": "q"}
        documents.put(f"c{number:02}", "ann", b"not JSON at all", b'{"id": "c%02d"}' % number, labels)
    user = Tenants(Settings(tenants=(Tenant(name="ann", keys=(hashed("a"),)),))).users["ann"]
    kept = ResponseStore(Settings(), documents, "chat completion")
    page = await kept.page(user, "", 3, True, {"metadata.k": "even"})
    assert [name for name, _ in page] == ["c48", "c46", "c44"] and page[0][1] == b'{"id": "c48"}'
    assert not await kept.page(user, "", 3, True, {"metadata.k": "nothing"})
    kept.close()


def test_the_oldest_documents_of_a_tenant_go_when_they_take_too_many_bytes(tmp_path: Path) -> None:
    documents = Documents(tmp_path, "completion")
    documents.put("his", "bob", b"x" * 900, b"{}")
    for number in range(10):
        documents.put(f"hers-{number}", "ann", b"x" * 198, b"{}", {"model": "q"})
    documents.trim(100, 1000)
    assert [name for name, _ in documents.page("bob", "", 100, True)] == ["his"]
    assert [name for name, _ in documents.page("ann", "", 100, True)] == [
        f"hers-{number}" for number in range(9, 4, -1)
    ]


def test_a_file_of_an_earlier_version_gets_the_new_columns(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "server.documents")) as db:
        db.execute(
            "CREATE TABLE documents (kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, "
            "at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, body BLOB NOT NULL, PRIMARY KEY (kind, id))"
        )
        old = {"response": {"id": "c"}, "conversation": [], "given": [], "background": False, "over": True}
        db.execute("INSERT INTO documents (kind, id, owner, body) VALUES ('completion', 'c', 'ann', ?)",
                   (json.dumps(old).encode(),))  # fmt: skip
        db.commit()
    documents = Documents(tmp_path, "completion")
    row = documents.get("c")
    assert row is not None
    user = Tenants(Settings(tenants=(Tenant(name="ann", keys=(hashed("a"),)),))).users["ann"]
    assert StoredResponse.from_document(user, *row[1:]).id == "c"


async def test_what_a_tenant_stores_is_dumped_and_parsed_on_a_thread(
    serve: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    main, seen = threading.get_ident(), list[str]()
    for name in ("dumps", "loads"):
        real = getattr(json, name)

        def spy(*given: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
            if threading.get_ident() == main and len(str(given[0])) > 100_000:
                seen.append(f"{_name} {sys._getframe(1).f_code.co_qualname}")
            return _real(*given, **more)

        monkeypatch.setattr(json, name, spy)
    body = {"model": "q", "messages": [{"role": "user", "content": "word " * 30_000}], "store": True}
    async with serve("one", journal=str(tmp_path / "runs.db")) as served, httpx.AsyncClient() as http:
        made = await http.post(f"{served.base}/chat/completions", content=real_json(body),
                               headers={"content-type": "application/json"})  # fmt: skip
        assert made.status_code == 200
        for path in ("", f"/{made.json()['id']}", f"/{made.json()['id']}/messages"):
            assert (await http.get(f"{served.base}/chat/completions{path}")).status_code == 200
    assert not seen


def real_json(body: Any) -> bytes:
    return httpx.Request("POST", "http://x", json=body).read()


async def test_a_response_whose_run_was_killed_before_its_start_was_written_ends_with_a_reason(
    serve: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def unreadable(*_: Any) -> None:
        raise ConfigError("the store is away")

    async with serve("fine", journal=str(tmp_path / "runs.db")) as served, served.client() as client:
        user = next(iter(served.service.tenants.users.values()), served.service.tenants.everybody)
        for age_s, status in ((0, "queued"), (60, "failed")):
            name = f"resp_{age_s:032x}"
            began = {"id": name, "object": "response", "status": "queued", "output": [], "model": "q"}
            began |= {"created_at": time.time() - age_s, "background": True}
            await served.service.responses.write(StoredResponse(began, user, None, [], [], True))
            with monkeypatch.context() as patch:
                patch.setattr(service, "find", unreadable)
                assert (await client.responses.retrieve(name)).status == "queued", "what cannot be read is not lost"
            found = await client.responses.retrieve(name)
            assert found.status == status, found
        assert found.error is not None and "send the request again" in found.error.message
        assert str(tmp_path) not in found.error.message
        assert (await client.responses.retrieve(name)).status == "failed", "and stays so"
