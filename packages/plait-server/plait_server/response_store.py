"""Stored responses and chat completions, which clients can read, follow, cancel and continue.

Responses that run in this process, and the newest others, are in memory. If the server has a journal, responses are
stored beside its runs: they survive the process, and all processes that share a store in PostgreSQL see the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from plait.core.errors import ConfigError

from .documents import Documents
from .errors import ApiError, not_found, of_error
from .settings import Settings
from .tenants import ServedRun, User

log = logging.getLogger("plait.serve")

T = TypeVar("T")
POLL_INTERVAL_S = 0.25
"""Interval for polling a response of another process, and for collecting its events."""
RETRY_INTERVAL_S = 2.0
"""Pause before a response that could not be stored when it ended is written again."""
TRIM_INTERVAL = 256
"""Number of stored responses after which the oldest are deleted, unless their bytes demand it earlier."""
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
    """The messages that the model received."""
    given: list[dict[str, Any]]
    """The items of the input."""
    background: bool
    events: list[bytes] = field(default_factory=list[bytes])
    """The server-sent events so far, if it is streamed or runs in the background."""
    over: bool = False
    work: asyncio.Task[None] | None = None
    steps: bool = False
    must_call: bool = False
    model: str = ""
    likeliest: int | None = None
    given_bytes: int = 0
    """Size of the conversation and the input, about."""
    is_written: bool = False
    """Whether its document is that of its end."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

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
        """Its approximate size in bytes."""
        return 1000 + sum(map(len, self.events)) + self.given_bytes + size_of(self.response)

    def add(self, event: bytes) -> None:
        """Add an event for its followers."""
        self.events.append(event)
        self.notify()

    def notify(self) -> None:
        """Wake its followers."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, first: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the events from one on, as they come, until the response is over."""
        events = self.events  # which are dropped when the response is over, but not here
        while True:
            while first < len(events):
                yield events[first]
                first += 1
            if self.over:
                return
            await self._changed.wait()

    async def wait_for_more(self) -> None:
        """Wait for the next event, and a moment longer for events that follow at once."""
        await self._changed.wait()
        await asyncio.sleep(POLL_INTERVAL_S)

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


class ResponseStore:
    """The stored responses. Beyond a limit, it drops the oldest ones of the tenant that stores most."""

    def __init__(self, settings: Settings, documents: Documents | None, what: str = "response") -> None:
        self._settings, self._what = settings, what
        self._documents = documents
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, dict[str, int]] = {}
        """Sizes of the ended ones, by tenant and id, the oldest first."""
        self._count, self._bytes = 0, 0
        self._since_trim = 1.0
        """Part of what may be written between two looks for the oldest."""
        self._thread = ThreadPoolExecutor(1, "plait-responses") if documents is not None else None
        """Writes, in order."""

    def __len__(self) -> int:
        return len(self._responses)

    def __contains__(self, stored: StoredResponse) -> bool:
        return stored.id in self._responses

    def close(self) -> None:
        """Wait until everything is written."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something with the documents on the thread. Raises `ApiError` (503) where they cannot be used."""
        assert self._thread is not None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except ConfigError as error:
            raise of_error(error) from error

    def _write_later(self, work: Callable[..., object], *arguments: Any) -> Future[object] | None:
        """Write something in the background. Errors are logged."""
        if self._thread is None:
            return None

        def done(future: Any) -> None:
            if (error := future.exception()) is not None:
                log.warning("a response cannot be stored: %s", error)

        writing = self._thread.submit(work, *arguments)
        writing.add_done_callback(done)
        return writing

    def _put_later(self, stored: StoredResponse) -> None:
        """Write a response in the background until it is stored or dropped: its client may have its end already."""
        loop = asyncio.get_running_loop()

        def done(future: Any) -> None:
            if future.exception() is not None:
                with contextlib.suppress(RuntimeError):  # the server has ended
                    loop.call_soon_threadsafe(loop.call_later, RETRY_INTERVAL_S, self._put_later, stored)

        if stored in self and (writing := self._write_later(self._put, stored)) is not None:
            writing.add_done_callback(done)

    def _put(self, stored: StoredResponse) -> None:
        """Write a response. For the thread: a conversation may be long."""
        assert self._documents is not None
        body, head, labels = stored.as_document()
        self._documents.put(stored.id, stored.user.name, body, head, labels)
        most = self._settings.store_bytes_per_tenant
        self._since_trim += max(1 / TRIM_INTERVAL, (len(body) + len(head)) / max(1, most) * 8)
        if stored.over and self._since_trim >= 1.0:
            self._since_trim = 0.0
            self._documents.trim(self._settings.store_responses, most)

    async def add(self, stored: StoredResponse) -> None:
        """Add a response. One that has ended or runs in the background is stored before this returns."""
        if stored.over or stored.background:
            await self.write(stored)
        self._responses[stored.id] = stored

    async def write_events(self, stored: StoredResponse) -> None:
        """Write the events of a response in the background as they come, for followers in other processes."""
        if self._documents is None or not self._documents.shared:
            return
        written, events = 0, stored.events
        while True:
            if len(events) > written:
                self._write_later(self._documents.add, stored.id, written, events[written:])
                written = len(events)
            elif stored.over:
                return
            else:
                await stored.wait_for_more()

    def complete(self, stored: StoredResponse) -> None:
        """Mark a response as ended, and drop others beyond the limits."""
        if stored.id not in self._responses:
            return
        if self._documents is not None:
            if stored.background and self._documents.shared:
                self._write_later(self._documents.add, stored.id, 0, list(stored.events))
            if not stored.is_written:
                self._put_later(stored)
        if not stored.background:
            stored.events = []
        stored.live = None
        self._sizes.setdefault(stored.user.name, {})[stored.id] = stored.size
        self._count += 1
        self._bytes += self._sizes[stored.user.name][stored.id]
        while True:
            if self._bytes > self._settings.keep_bytes:
                largest = max(self._sizes.values(), key=lambda sizes: sum(sizes.values()))
            elif self._count > self._settings.keep_responses:
                largest = max(self._sizes.values(), key=len)
            else:
                return
            self._drop(next(iter(largest)))

    async def find(self, name: str, user: User, param: str | None = None) -> StoredResponse:
        """Return a response of the tenant. Raises `ApiError` (404) for an unknown one, or another tenant's."""
        stored = self._responses.get(name)
        if stored is None:
            stored = await self.load(name, user)
        if stored is None or stored.user is not user:
            code = f"{self._what.replace(' ', '_')}_not_found"
            raise not_found(f"there is no {self._what} {name!r} here (the oldest go)", param, code)
        return stored

    async def load(self, name: str, user: User) -> StoredResponse | None:
        """Return a response of the tenant's that is written down."""
        if self._documents is None or len(name) > 100:
            return None
        return await self._run(_load, self._documents, name, user)

    async def page(
        self, user: User, after: str, limit: int, newest: bool, labels: Mapping[str, str]
    ) -> list[tuple[str, bytes]]:
        """Return ids of the tenant's objects that have these labels, and the objects as JSON: those after the one named
        `after`, the oldest or the newest first. Raises `ApiError` if that one does not exist."""
        if after:
            await self.find(after, user, "after")
        if self._documents is not None:
            return await self._run(self._documents.page, user.name, after, limit, newest, labels)
        own = [stored for stored in self._responses.values() if stored.user is user]
        own = own[::-1] if newest else own
        first = next((place for place, stored in enumerate(own, 1) if stored.id == after), 0)
        fitting = [stored for stored in own[first:] if labels.items() <= labels_of(stored.response).items()][:limit]
        return await asyncio.to_thread(lambda: [(stored.id, dump_json(stored.response)) for stored in fitting])

    async def load_events(self, stored: StoredResponse, first: int) -> list[bytes]:
        """Return the events of a response of another process, from one on."""
        return [] if self._documents is None else await self._run(self._documents.pieces, stored.id, first)

    async def follow(self, stored: StoredResponse, first: int) -> AsyncGenerator[bytes, None]:
        """Yield the events of a response that is not in memory, from one on."""
        while True:
            now = await self.load(stored.id, stored.user)
            for piece in await self.load_events(stored, first):
                yield piece
                first += 1
            if now is None or now.over:
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    async def wait_until_over(self, stored: StoredResponse, seconds: float) -> StoredResponse:
        """Wait until a response of another process is over, at most so long, and return it."""
        until = asyncio.get_running_loop().time() + seconds
        while not stored.over and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_INTERVAL_S)
            stored = await self.load(stored.id, stored.user) or stored
        return stored

    async def write(self, stored: StoredResponse) -> None:
        """Write the document of a response now: a process that is killed must not lose what it has confirmed."""
        if self._documents is not None:
            await self._run(self._put, stored)
            stored.is_written = stored.over

    async def delete(self, name: str, user: User) -> None:
        """Drop a response. Raises `ApiError`."""
        stored = await self.find(name, user)
        if not stored.over:
            raise ApiError(409, f"response {name} is still running: cancel it first")
        if name in self._responses:
            self._drop(name)
        if self._documents is not None:
            await self._run(self._documents.delete, name)

    def _drop(self, name: str) -> None:
        sizes = self._sizes.get(self._responses.pop(name).user.name, {})
        if name in sizes:
            self._count -= 1
            self._bytes -= sizes.pop(name)


def _load(documents: Documents, name: str, user: User) -> StoredResponse | None:
    row = documents.get(name)
    return None if row is None or row[0] != user.name else StoredResponse.from_document(user, *row[1:])
