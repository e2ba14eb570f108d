"""How far a command with many rows or problems is: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .interrupt import Stopper
from .output import Output

_LINE_INTERVAL_S = 10.0
"""Seconds between two lines where there is no terminal."""


@contextlib.contextmanager
def counting(
    output: Output, total: int, done: Callable[[], int], bar: Callable[[], str], line: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    """Yield a function to call whenever one more of `total` is `done`. `bar` words the bar, `line` a line elsewhere."""
    console = output.progress
    if not console.is_terminal:
        last = time.monotonic()

        def say() -> None:
            nonlocal last
            if done() == total or time.monotonic() - last >= _LINE_INTERVAL_S:
                last = time.monotonic()
                console.print(line(), markup=False)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=console, transient=True) as shown:
        task = shown.add_task(bar(), total=total, completed=done())
        yield lambda: shown.update(task, completed=done(), description=bar())


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
