"""What is taken from a worker: any number of `Progress`, then one end, with counts that can be true."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from ...core.interfaces import Progress
from ...core.result import Failure, Result, Usage

Item = Progress | Result | Failure

MOST = 1 << 40
"""More tokens than any attempt has. A larger count is a fault of whoever reported it."""


async def checked(news: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
    """Yield a job's news up to its first end, and close the worker's iterator there.

    A second result, and progress after the result, are not taken. Counts below 0 become 0, and so do counts that are
    larger than `MOST`.
    """
    try:
        async for item in news:
            if isinstance(item, Progress):
                yield item if 0 <= item.tokens < MOST else replace(item, tokens=0)
                continue
            usage = sane(item.usage)
            yield item if usage is item.usage else item.model_copy(update={"usage": usage})
            return
    finally:
        if isinstance(news, AsyncGenerator):
            await news.aclose()


def sane(usage: Usage) -> Usage:
    """Return a usage without counts that cannot be true; the same object if it has none."""
    wrong = {
        name: 0
        for name, count in usage
        if not 0 <= count < MOST  # false for NaN too
    }
    return usage.model_copy(update=wrong) if wrong else usage
