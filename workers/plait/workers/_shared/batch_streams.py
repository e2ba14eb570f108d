"""Between a thread that makes news and the event loop that reads it: one hand-over per batch, whatever its size."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from plait.core.events import Job
from plait.core.interfaces import DirectWorker, Progress, Tell
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


class Reporter:
    """Passes on the reports of one job, on the loop; it drops empty progress, and what follows the last item."""

    __slots__ = ("_end", "_tell", "ended")

    def __init__(self, tell: Tell, end: Callable[[Result | Failure], None] | None = None) -> None:
        """`tell` takes the reports; with `end`, that takes the last one in its place."""
        self._tell, self._end = tell, end or tell
        self.ended = False

    def push(self, item: Item) -> None:
        """Pass on a report."""
        if self.ended:
            return
        if not isinstance(item, Progress):
            self.ended = True
            self._end(item)
        elif item.text or item.tokens:
            self._tell(item)


class CallbackWorker(DirectWorker):
    """A worker whose jobs report through callbacks (`begin`)."""

    async def run(self, job: Job) -> AsyncIterator[Item]:
        """Begin a job and yield its reports. A reader that leaves before the end cancels it."""
        reports: asyncio.Queue[Item] = asyncio.Queue()
        self.begin(job, reports.put_nowait)
        item = None
        try:
            while item is None or isinstance(item, Progress):
                item = await reports.get()
                yield item
        finally:
            if item is None or isinstance(item, Progress):
                await self.cancel(job.attempt)


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
        self._news: deque[Sequence[tuple[Reporter, Item]] | Callable[[], object]] = deque()
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

    def post(self, news: Sequence[tuple[Reporter, Item]]) -> None:
        """Hand news to the loop; from the thread. One wake-up of the loop, or none when one is on its way."""
        if news:
            self._news.append(news)
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
            if callable(news):
                news()
                continue
            batches = [news]
            while self._news and not callable(self._news[0]):
                batches.append(self._news.popleft())  # pyright: ignore[reportArgumentType]
            for reporter, item in news if len(batches) == 1 else _merge(batches):
                reporter.push(item)


def _merge(batches: Iterable[Sequence[tuple[Reporter, Item]]]) -> Iterator[tuple[Reporter, Item]]:
    """Merge the progress of each job: that of several steps costs a loop that is behind as much as that of one."""
    news: dict[Reporter, list[Progress]] = {}
    ends: list[tuple[Reporter, Item]] = []
    for reporter, item in itertools.chain.from_iterable(batches):
        if isinstance(item, Progress):
            news.setdefault(reporter, []).append(item)
        else:
            ends.append((reporter, item))
    return itertools.chain(((reporter, together(pieces)) for reporter, pieces in news.items()), ends)
