"""Between a thread that makes news and the event loop that reads it: one hand-over per batch, whatever its size.

Knows nothing of what makes the news.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from orchestrator.core.base import Progress
from orchestrator.core.ir import Failure, Result

Item = Progress | Result | Failure
T = TypeVar("T")


class Stream:
    """The news of one job, read on the loop. News that has piled up unread comes as one."""

    __slots__ = ("_last", "_logprobs", "_quiet", "_texts", "_tokens", "_waiter")

    def __init__(self, quiet: bool = False) -> None:
        """With `quiet`, only the last item is given."""
        self._quiet = quiet
        self._texts: list[str] = []
        self._tokens = 0
        self._logprobs: float | None = None
        self._last: Result | Failure | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether the last item has come."""
        return self._last is not None

    def push(self, item: Item) -> None:
        """Add news, on the loop; what comes after the last item is dropped."""
        if self._last is not None:
            return
        if isinstance(item, Progress):
            if self._quiet:
                return
            self._texts.append(item.text)
            self._tokens += item.tokens
            if item.logprob is not None:
                self._logprobs = (self._logprobs or 0.0) + item.logprob * item.tokens
        else:
            self._last = item
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _gather(self) -> Progress | None:
        if not self._texts:
            return None
        mean = self._logprobs / self._tokens if self._logprobs is not None and self._tokens else None
        progress = Progress("".join(self._texts), self._tokens, mean)
        self._texts, self._tokens, self._logprobs = [], 0, None
        return progress if progress.text or progress.tokens else None

    async def __aiter__(self) -> AsyncIterator[Item]:
        while True:
            progress = self._gather()
            if progress is not None:
                yield progress
            elif self._last is not None:
                yield self._last
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter


class Inbox(Generic[T]):
    """Orders from the loop to a thread, and batches of news back."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._wake = threading.Condition()
        self._orders: list[T] = []
        self._news: deque[tuple[Stream, Item]] = deque()
        self._posted = False

    def put(self, order: T) -> None:
        """Give the thread an order; from anywhere."""
        with self._wake:
            self._orders.append(order)
            self._wake.notify()

    def take(self, wait: bool) -> list[T]:
        """Return the orders that have come in, in order; with `wait`, sleep until there is one."""
        if not wait and not self._orders:
            return []
        with self._wake:
            while wait and not self._orders:
                self._wake.wait()
            orders, self._orders = self._orders, []
            return orders

    def post(self, news: Sequence[tuple[Stream, Item]]) -> None:
        """Hand news to the loop; from the thread. One wake-up of the loop, or none when one is on its way."""
        if not news:
            return
        self._news.extend(news)
        if not self._posted:
            self._posted = True
            self.call(self._deliver)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, if it still runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def _deliver(self) -> None:
        self._posted = False  # before reading: what is posted from now on brings its own wake-up
        while self._news:
            stream, item = self._news.popleft()
            stream.push(item)
