"""The responses that are remembered, so that they can be read, followed, cancelled and gone on from."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from .errors import ApiError, not_found
from .live import Live
from .settings import Settings
from .tenants import User

__all__ = ["Kept", "Responses"]


@dataclass(slots=True)
class Kept:
    """One response, done or under way."""

    response: dict[str, Any]
    user: User
    live: Live
    conversation: list[dict[str, Any]]
    """What was put to the model, as messages."""
    given: list[dict[str, Any]]
    """The items of the input."""
    background: bool
    events: list[bytes] = field(default_factory=list[bytes])
    """Server-sent events so far, of one that is streamed or runs in the background."""
    over: bool = False
    work: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """Its id."""
        return self.response["id"]

    @property
    def size(self) -> int:
        """How many bytes it takes up, about."""
        return 1000 + sum(map(len, self.events)) + sum(len(str(each)) for each in (*self.conversation, self.response))

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


class Responses:
    """All that are kept, the oldest of which go when there are too many. In memory: a restart forgets them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, kept: Kept) -> None:
        """Take a response that has begun."""
        self._kept[kept.id] = kept

    def settle(self, kept: Kept) -> None:
        """Take note that a response is over, and make room."""
        if kept.id not in self._kept:
            return
        if not kept.background:
            kept.events = []
        self._sizes[kept.id] = kept.size
        self._total += self._sizes[kept.id]
        for name in list(self._kept):
            few = len(self._sizes) <= self._settings.keep_responses
            if few and self._total <= self._settings.keep_bytes:
                break
            if name in self._sizes:
                self._drop(name)

    def find(self, name: str, user: User, param: str | None = None) -> Kept:
        """Return a response of the tenant's. Raises `ApiError`: another tenant's is not there."""
        kept = self._kept.get(name)
        if kept is None or kept.user is not user:
            raise not_found(f"there is no response {name!r} here (they are kept in memory, and the oldest go)", param,
                            "response_not_found")  # fmt: skip
        return kept

    def forget(self, name: str, user: User) -> None:
        """Drop a response. Raises `ApiError`."""
        kept = self.find(name, user)
        if not kept.over:
            raise ApiError(409, f"response {name} is under way: cancel it first")
        self._drop(name)

    def _drop(self, name: str) -> None:
        self._total -= self._sizes.pop(name, 0)
        del self._kept[name]
