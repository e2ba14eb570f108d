"""Delegating proxy of a worker.

Its attributes are written out because the class-level defaults of `Worker` (models, cache) would hide the values of the
inner worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ...core.events import Job
from ...core.interfaces import CacheUpdate, Progress, Worker, cache_news, offer
from ...core.ops import Kind, ModelCall
from ...core.result import Failure, Result


class WorkerProxy(Worker):
    """Has the offer of `inner`, and delegates every call to it."""

    def __init__(self, inner: Worker) -> None:
        self.inner = inner
        self.name = inner.name
        self.serves: tuple[Kind, ...] = inner.serves
        self.look()

    def look(self) -> None:
        """Copy the inner worker's offer."""
        # Again at each start and health report: some of it is known only then, or changes when the worker returns.
        offered = offer(self.inner)
        self.slots, self.models, self.identity = offered.slots, offered.models, offered.identity
        self.hints = getattr(self.inner, "hints", False)
        self.cache_tokens, self.block = offered.cache_tokens, offered.block
        self.counts_tokens: bool
        self.reports, self.counts_tokens, self.prices = offered.reports, offered.counts_tokens, offered.prices

    async def start(self) -> None:
        """Start the inner worker."""
        await self.inner.start()
        self.look()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Run the job on the inner worker."""
        async for item in self.inner.run(job):
            yield item

    async def cancel(self, attempt: int) -> None:
        """Stop an attempt on the inner worker."""
        await self.inner.cancel(attempt)

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Count a prompt on the inner worker, or return `None` if it cannot count."""
        count = getattr(self.inner, "count_tokens", None)
        return None if count is None else await count(op)

    async def cache_news(self) -> AsyncIterator[CacheUpdate]:
        """Yield the inner worker's cache reports, if it has any."""
        if (news := cache_news(self.inner)) is not None:
            async for change in news:
                yield change

    async def health(self) -> AsyncIterator[bool]:
        """Yield the inner worker's health."""
        async for healthy in self.inner.health():
            self.look()
            yield healthy

    async def close(self) -> None:
        """Close the inner worker."""
        await self.inner.close()

    def __getattr__(self, name: str) -> object:
        if name == "inner":  # not made yet
            raise AttributeError(name)
        return getattr(self.inner, name)
