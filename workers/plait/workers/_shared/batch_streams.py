"""Between a thread that makes news and the event loop that reads it: one hand-over per batch, whatever its size."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from plait.core.interfaces import Progress
from plait.core.result import Failure, Result

Item = Progress | Result | Failure
T = TypeVar("T")


class TokenBatch(NamedTuple):
    """The token ids that are new of many jobs, in flat arrays: an object for each job would cost more than an engine
    step for a few of them."""

    attempts: Sequence[int]
    counts: Sequence[int]
    """How many of `ids` belong to each attempt, in their order; shape (attempts,)."""
    ids: Sequence[int]
    """Shape (sum of counts,)."""

    def parts(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield each attempt with its ids."""
        begin = 0
        for attempt, count in zip(self.attempts, self.counts, strict=True):
            yield attempt, self.ids[begin : begin + count]
            begin += count


class Stream:
    """The news of one job, read on the loop. News that has piled up unread comes as one."""

    __slots__ = ("_last", "_quiet", "_unread", "_waiter")

    def __init__(self, quiet: bool = False) -> None:
        """With `quiet`, only the last item is given."""
        self._quiet = quiet
        self._unread: list[Progress] = []
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
            if self._quiet or not (item.text or item.tokens):
                return
            self._unread.append(item)
        else:
            self._last = item
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _gather(self) -> Progress | None:
        unread = self._unread
        if not unread:
            return None
        self._unread = []
        return unread[0] if len(unread) == 1 else together(unread)

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


def together(news: Sequence[Progress]) -> Progress:
    """Merge consecutive progress reports of one job into one."""
    scored = [piece for piece in news if piece.logprob is not None and piece.tokens]
    counted = sum(piece.tokens for piece in scored)
    return Progress(
        "".join([piece.text for piece in news]),
        sum(piece.tokens for piece in news),
        sum((piece.logprob or 0.0) * piece.tokens for piece in scored) / counted if counted else None,
        tuple(itertools.chain.from_iterable(piece.ids for piece in news)),
        next((piece.group for piece in reversed(news) if piece.group is not None), None),
        next((piece.lowest for piece in reversed(news) if piece.lowest is not None), None),
        "".join([piece.reasoning for piece in news]),
    )


class Inbox(Generic[T]):
    """Orders from the loop to a thread, and batches of news back."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._wake = threading.Condition()
        self._orders: list[T] = []
        self._news: deque[tuple[Stream, Item] | Callable[[], object]] = deque()
        self._posted = False
        self.on_put: Callable[[], None] | None = None
        """Called after each order, for a thread that waits elsewhere."""

    def put(self, order: T) -> None:
        """Give the thread an order; from anywhere."""
        with self._wake:
            self._orders.append(order)
            self._wake.notify()
        if self.on_put is not None:
            self.on_put()

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
        if news:
            self._news.extend(news)
            self._notify()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, if it still runs: after the news posted before, and before what is posted
        later. From the thread."""
        self._news.append(function)
        self._notify()

    def _notify(self) -> None:
        if not self._posted and self._loop is not None:
            self._posted = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._posted = False  # before reading: what is posted from now on brings its own wake-up
        while self._news:
            news = self._news.popleft()
            if isinstance(news, tuple):
                stream, item = news
                stream.push(item)
            else:
                news()
