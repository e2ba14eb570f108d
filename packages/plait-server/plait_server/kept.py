"""Stored responses and chat completions, which clients can read, follow, cancel and continue.

Responses that run in this process, and the newest others, are in memory. If the server has a journal, responses are
stored beside its runs: they survive the process, and all processes that share a store in PostgreSQL see the same ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from plait.core.errors import ConfigError
from plait.runtime.journal.documents import Documents

from .errors import ApiError, not_found, of_error
from .settings import Settings
from .tenants import ServedRun, User

__all__ = ["Responses", "StoredResponse", "dump_json", "size_of"]

log = logging.getLogger("plait.serve")

T = TypeVar("T")
_OFTEN = 0.25
"""Seconds between two looks at a response of another process, and for which its events are gathered."""
_TRIM = 256
"""Responses after which the oldest are looked for; or a part of the bytes that a tenant may store."""
_STORED = (*("conversation", "given", "background", "over", "steps", "must_call", "model", "likeliest", "given_bytes"),)
"""Fields in the body of a document."""


@dataclass(slots=True)
class StoredResponse:
    """One response, ended or running; or a chat completion, which has ended."""

    response: dict[str, Any]
    user: User
    live: ServedRun | None
    """Its run, if that is running in this process."""
    conversation: list[dict[str, Any]]
    """What was put to the model, as messages."""
    given: list[dict[str, Any]]
    """The items of the input."""
    background: bool
    events: list[bytes] = field(default_factory=list[bytes])
    """Server-sent events so far, of one that is streamed or runs in the background."""
    over: bool = False
    work: asyncio.Task[None] | None = None
    steps: bool = False
    must_call: bool = False
    model: str = ""
    likeliest: int | None = None
    given_bytes: int = 0
    """Size of the conversation and the input, about."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """Its id."""
        return self.response["id"]

    @property
    def run(self) -> str:
        """Its run's id."""
        return self.id.removeprefix("resp_")

    @property
    def size(self) -> int:
        """How many bytes it takes up, about."""
        return 1000 + sum(map(len, self.events)) + self.given_bytes + size_of(self.response)

    def add(self, event: bytes) -> None:
        """Take an event for those who follow."""
        self.events.append(event)
        self.told()

    def told(self) -> None:
        """Wake those who follow."""
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, first: int = 0) -> AsyncIterator[bytes]:
        """Yield the events from one on, as they come, until the response is over."""
        events = self.events  # which are dropped when the response is over, but not here
        while True:
            while first < len(events):
                yield events[first]
                first += 1
            if self.over:
                return
            await self._news.wait()

    async def gathered(self) -> None:
        """Wait until there is more, and then a moment for what follows at once."""
        await self._news.wait()
        await asyncio.sleep(_OFTEN)

    def as_document(self) -> tuple[bytes, bytes, dict[str, str]]:
        """Return the document to store: body and head, as JSON, and its labels."""
        body = json.dumps({name: getattr(self, name) for name in _STORED}).encode()
        return body, dump_json(self.response), labels_of(self.response)

    @classmethod
    def from_document(cls, user: User, body: bytes, head: bytes) -> StoredResponse:
        """Return the response of a stored document. One of an earlier version has no head."""
        fields = json.loads(body)
        return cls(**({"response": json.loads(head)} if head else {}), **fields, user=user, live=None)


def dump_json(value: object) -> bytes:
    """Return a value as JSON, as answers have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def size_of(value: Any) -> int:
    """Return about how many bytes a JSON value takes up."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(20 + size_of(item) for item in cast("dict[str, Any]", value).values())
    return sum(map(size_of, cast("list[Any]", value))) if isinstance(value, list) else 8


def labels_of(response: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels by which a list can filter a response."""
    notes = {f"metadata.{name}": value for name, value in (response.get("metadata") or {}).items()}
    return {**notes, "model": str(response.get("model") or "")}


class Responses:
    """All that are kept. When there are too many, the oldest of the tenant that has most go."""

    def __init__(self, settings: Settings, documents: Documents | None, what: str = "response") -> None:
        self._settings, self._what = settings, what
        self._documents = documents
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, dict[str, int]] = {}
        """Of those that are over, by tenant and id, the oldest first."""
        self._many, self._total = 0, 0
        self._since_trim = 1.0
        """Part of what may be written between two looks for the oldest."""
        self._thread = ThreadPoolExecutor(1, "plait-responses") if documents is not None else None
        """Writes, in order."""

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Wait for what is being written."""
        if self._thread is not None:
            self._thread.shutdown()

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something with the documents on the thread. Raises `ApiError` (503) where they cannot be used."""
        assert self._thread is not None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except ConfigError as error:
            raise of_error(error) from error

    def _later(self, work: Callable[..., object], *arguments: Any) -> None:
        """Write something in the background. Errors are logged."""
        if self._thread is None:
            return

        def done(future: Any) -> None:
            if (error := future.exception()) is not None:
                log.warning("a response cannot be written down: %s", error)

        self._thread.submit(work, *arguments).add_done_callback(done)

    def _put(self, kept: StoredResponse) -> None:
        """Write a response. For the thread: a conversation may be long."""
        assert self._documents is not None
        body, head, labels = kept.as_document()
        self._documents.put(kept.id, kept.user.name, body, head, labels)
        most = self._settings.store_bytes_per_tenant
        self._since_trim += max(1 / _TRIM, (len(body) + len(head)) / max(1, most) * 8)
        if kept.over and self._since_trim >= 1.0:
            self._since_trim = 0.0
            self._documents.trim(self._settings.store_responses, most)

    async def keep(self, kept: StoredResponse) -> None:
        """Take a response that has begun. One in the background is written down before this returns."""
        self._kept[kept.id] = kept
        if self._documents is not None and kept.background:
            await self._do(self._put, kept)

    async def write_events(self, kept: StoredResponse) -> None:
        """Write the events of a response in the background as they come, for followers in other processes."""
        if self._documents is None or not self._documents.shared:
            return
        written, events = 0, kept.events
        while True:
            if len(events) > written:
                self._later(self._documents.add, kept.id, written, events[written:])
                written = len(events)
            elif kept.over:
                return
            else:
                await kept.gathered()

    def settle(self, kept: StoredResponse) -> None:
        """Take note that a response is over, and make room."""
        if kept.id not in self._kept:
            return
        if self._documents is not None:
            if kept.background and self._documents.shared:
                self._later(self._documents.add, kept.id, 0, list(kept.events))
            self._later(self._put, kept)
        if not kept.background:
            kept.events = []
        kept.live = None
        self._sizes.setdefault(kept.user.name, {})[kept.id] = kept.size
        self._many += 1
        self._total += self._sizes[kept.user.name][kept.id]
        while True:
            if self._total > self._settings.keep_bytes:
                largest = max(self._sizes.values(), key=lambda sizes: sum(sizes.values()))
            elif self._many > self._settings.keep_responses:
                largest = max(self._sizes.values(), key=len)
            else:
                return
            self._drop(next(iter(largest)))

    async def find(self, name: str, user: User, param: str | None = None) -> StoredResponse:
        """Return a response of the tenant. Raises `ApiError` (404) for an unknown one, or another tenant's."""
        kept = self._kept.get(name)
        if kept is None:
            kept = await self.load(name, user)
        if kept is None or kept.user is not user:
            code = f"{self._what.replace(' ', '_')}_not_found"
            raise not_found(f"there is no {self._what} {name!r} here (the oldest go)", param, code)
        return kept

    async def load(self, name: str, user: User) -> StoredResponse | None:
        """Return a response of the tenant's that is written down."""
        if self._documents is None or len(name) > 100:
            return None
        return await self._do(_loaded, self._documents, name, user)

    async def page(
        self, user: User, after: str, limit: int, newest: bool, labels: Mapping[str, str]
    ) -> list[tuple[str, bytes]]:
        """Return ids of the tenant's objects that have these labels, and the objects as JSON: those after the one named
        `after`, the oldest or the newest first. Raises `ApiError` if that one does not exist."""
        if after:
            await self.find(after, user, "after")
        if self._documents is not None:
            return await self._do(self._documents.page, user.name, after, limit, newest, labels)
        mine = [kept for kept in self._kept.values() if kept.user is user]
        mine = mine[::-1] if newest else mine
        first = next((place for place, kept in enumerate(mine, 1) if kept.id == after), 0)
        fitting = [kept for kept in mine[first:] if labels.items() <= labels_of(kept.response).items()][:limit]
        return await asyncio.to_thread(lambda: [(kept.id, dump_json(kept.response)) for kept in fitting])

    async def pieces(self, kept: StoredResponse, first: int) -> list[bytes]:
        """Return the events of a response of another process, from one on."""
        return [] if self._documents is None else await self._do(self._documents.pieces, kept.id, first)

    async def follow(self, kept: StoredResponse, first: int) -> AsyncIterator[bytes]:
        """Yield the events of a response that is not in memory, from one on."""
        while True:
            now = await self.load(kept.id, kept.user)
            for piece in await self.pieces(kept, first):
                yield piece
                first += 1
            if now is None or now.over:
                return
            await asyncio.sleep(_OFTEN)

    async def settled(self, kept: StoredResponse, seconds: float) -> StoredResponse:
        """Wait until a response of another process is over, at most so long, and return it."""
        until = asyncio.get_running_loop().time() + seconds
        while not kept.over and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_OFTEN)
            kept = await self.load(kept.id, kept.user) or kept
        return kept

    async def changed(self, kept: StoredResponse) -> None:
        """Rewrite the stored document of an ended one."""
        if self._documents is not None:
            await self._do(self._put, kept)

    async def forget(self, name: str, user: User) -> None:
        """Drop a response. Raises `ApiError`."""
        kept = await self.find(name, user)
        if not kept.over:
            raise ApiError(409, f"response {name} is still running: cancel it first")
        if name in self._kept:
            self._drop(name)
        if self._documents is not None:
            await self._do(self._documents.delete, name)

    def _drop(self, name: str) -> None:
        sizes = self._sizes.get(self._kept.pop(name).user.name, {})
        if name in sizes:
            self._many -= 1
            self._total -= sizes.pop(name)


def _loaded(documents: Documents, name: str, user: User) -> StoredResponse | None:
    row = documents.get(name)
    return None if row is None or row[0] != user.name else StoredResponse.from_document(user, *row[1:])
