"""A worker around another that keeps what it gave, for tests that compare contexts token by token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Kind
from plait.core.result import Failure, Result


class Recording(Worker):
    """A worker, and what it gave."""

    serves: tuple[Kind, ...] = ("think",)

    def __init__(self, inner: Any) -> None:
        self.inner, self.name, self.slots = inner, inner.name, inner.slots
        self.results: dict[str, Result] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def start(self) -> None:
        await self.inner.start()
        self.slots = self.inner.slots

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        async for item in self.inner.run(job):
            if isinstance(item, Result):
                self.results[job.step] = item
            yield item

    async def cancel(self, attempt: int) -> None:
        await self.inner.cancel(attempt)

    def health(self) -> AsyncIterator[bool]:
        return self.inner.health()

    async def close(self) -> None:
        await self.inner.close()
