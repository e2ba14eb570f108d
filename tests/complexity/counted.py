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


def exponent(cost: Callable[[int], int], n: int, times: int = 8, least: int = 1) -> float:
    """Return the power of n with which a cost grows from n to `times` n: of what is spent beyond the cost at `least`,
    which is measured when all that is made once has been made."""
    cost(least)
    base = cost(least)
    # Less than a twentieth of the base is no growth that could bend.
    few, many = (max(cost(size) - base, base / 20) / (size - least) for size in (n, n * times))
    return 1 + math.log(many / few, times)


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
        text = self._says(len(self.at))
        yield Result(value=text, finish="stop", logprob=-0.5, usage=Usage(prompt=8, completion=8))

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
