"""Counts calls of functions, Python's and C's: what something costs, however busy the machine is."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import FrameType

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Kind
from plait.core.result import Failure, Result, Usage

EXPONENT = 1.15
"""Above this a curve bends: eight times as much costs eleven times as many calls."""


class Counter:
    """Calls so far."""

    calls = 0


@contextlib.contextmanager
def counting() -> Generator[Counter]:
    """Count the calls that are made meanwhile on this thread."""
    counter = Counter()

    def called(frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            counter.calls += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield counter
    finally:
        sys.setprofile(before)


def exponent(cost: Callable[[int], int], n: int, times: int = 8) -> float:
    """Return the power of n with which a cost grows from n to `times` n; what it costs at 1 is taken off."""
    base = cost(1)
    few, many = cost(n) - base, cost(n * times) - base
    return math.log(max(many, 1) / max(few, 1), times)


class Says(Worker):
    """A model that says at once what it is told to, and notes the calls at each request."""

    name, slots = "model", 64
    serves: tuple[Kind, ...] = ("think",)

    def __init__(self, says: Callable[[int], str], counter: Counter | None = None) -> None:
        self._says, self._counter = says, counter
        self.at: list[int] = []
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Nothing to load."""
        self._over = asyncio.Event()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Answer."""
        self.at.append(self._counter.calls if self._counter is not None else 0)
        yield Result(value=self._says(len(self.at)), finish="stop", usage=Usage(prompt=8, completion=8))

    async def cancel(self, attempt: int) -> None:
        """Nothing goes on."""

    async def health(self) -> AsyncIterator[bool]:
        """Say that it is there, until it is closed."""
        yield True
        await self._over.wait()

    async def close(self) -> None:
        """End."""
        self._over.set()


def each(at: Sequence[int], place: int, around: int = 5) -> float:
    """Return the calls of one turn, about the one at a place."""
    return (at[place + around] - at[place - around]) / (2 * around)
