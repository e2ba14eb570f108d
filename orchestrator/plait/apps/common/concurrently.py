"""Runs one coroutine for each of many items, a few at a time, until all are done or the user gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from .interrupt import Stopper

__all__ = ["for_each"]

T = TypeVar("T")


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[object]], concurrency: int, stopper: Stopper
) -> None:
    """Await `work(item)` for every item, `concurrency` at a time; take no further item once the user gives up.

    Items are drawn only when there is room for one, so an iterable may be endless or large. The first exception of
    `work` ends all of it and is raised.
    """
    queue = iter(items)

    async def one_after_another() -> None:
        for item in queue:
            if stopper.requested:
                return
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(one_after_another())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
