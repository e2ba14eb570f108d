"""Chat completions that are kept: read, listed, given other notes, deleted, by the `openai` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.workers.scripted import Reply
from plait_server.settings import Tenant
from plait_server.tenants import hashed

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


async def test_what_failed_is_not_kept(serve: Any) -> None:
    async with serve(Reply(text="no memory", finish="error")) as served:
        chats = served.client().chat.completions
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="no memory"):
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
