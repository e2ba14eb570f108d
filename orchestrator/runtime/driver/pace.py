"""Jobs begin a few in each turn of the event loop: hundreds that begin at once would hold up all that came before."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

FEW = 2
"""Jobs that begin in one turn of the loop."""


class Pace:
    """Gives turns to jobs: one run after another, and in a run in the order in which they ask."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = FEW
        self._armed = False
        self._runs: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    async def turn(self, attempt: int, run: str) -> bool:
        """Return when a job of a run may begin: whether it is still wanted."""
        self._arm()
        if self._left and not self._runs:
            self._left -= 1
            return True
        waits = self._waiting[attempt] = self._loop.create_future()
        self._runs.setdefault(run, deque()).append(waits)
        try:
            return await waits
        finally:
            self._waiting.pop(attempt, None)

    def give_up(self, attempt: int) -> bool:
        """Have a job that has not begun never begin; return whether there is one."""
        waits = self._waiting.get(attempt)
        if waits is None or waits.done():
            return False
        waits.set_result(False)
        return True

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._armed, self._left = False, FEW
        while self._runs and self._left:
            run, queue = self._runs.popitem(last=False)
            waits = queue.popleft()
            if queue:
                self._runs[run] = queue  # behind the others
            if not waits.done():
                waits.set_result(True)
                self._left -= 1
        if self._runs:
            self._arm()
