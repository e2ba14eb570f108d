"""Rollouts handed from those who make them to one who trains on them, while both work.

Nothing is dropped because a queue is full: a rollout starts only with a credit, and there are as many credits as
rollouts may be ahead of the trainer. `staleness` s is that of asynchronous RL (AsyncFlow, arXiv 2507.01663; verl): of
`batch` rollouts a step, `(1 + s) * batch` may be under way, waiting, or being trained on. With s = 0 the makers wait
while the trainer trains, so a step takes as long as both together; from s = 1 on it takes as long as the slower.

Credits alone cannot promise freshness (a rollout may take long), so age is looked at again when a batch is taken.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from ....core.errors import UsageError
from .record import Record
from .store import SkipCounts

__all__ = ["Feed"]


class Feed:
    """Between makers and one trainer, in one event loop.

    Args:
        batch: rollouts of a training step.
        staleness: how far, in steps, makers may be ahead; 0 is synchronous.
        max_staleness: most updates between the oldest token of a rollout and the step that trains on it; the next
            larger integer of `staleness` if left out.
    """

    def __init__(self, batch: int, staleness: float = 0.0, max_staleness: int | None = None) -> None:
        if batch < 1 or not 0 <= staleness < math.inf:
            raise UsageError("a feed has a batch of 1 or more, and a staleness of 0 or more")
        self.batch = batch
        self.max_staleness = math.ceil(staleness) if max_staleness is None else max_staleness
        self.version = 0
        """Of the weights that are trained; counts steps."""
        self.counts = SkipCounts()
        self._credits = round((1 + staleness) * batch)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ready: deque[list[Record]] = deque()
        self._filled = asyncio.Event()
        self._held = 0
        """Rollouts that the trainer trains on."""

    async def credit(self) -> None:
        """Wait until a rollout may start. Each credit is used up by one `put` or given back by `forfeit`."""
        while not self._credits:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # Its credit was given just before it was cancelled: the next in line gets it.
                if turn.done() and not turn.cancelled():
                    self._wake(1)
                raise
        self._credits -= 1

    def put(self, rollout: Sequence[Record]) -> None:
        """Hand a whole rollout over."""
        self._ready.append(list(rollout))
        self._filled.set()

    def forfeit(self) -> None:
        """Give the credit of a rollout back that came to nothing."""
        self._give(1)

    async def take(self) -> list[list[Record]]:
        """Return the rollouts of the next step, as soon as there are enough that are fresh and judged. Credits of those
        that are left out are given back at once, so that others are made in their place."""
        out: list[list[Record]] = []
        while len(out) < self.batch:
            while not self._ready:
                self._filled.clear()
                await self._filled.wait()
            rollout = self._ready.popleft()
            oldest = min((version for record in rollout for version in record.versions), default=self.version)
            if self.version - oldest > self.max_staleness:
                self.counts.stale += 1
                self._give(1)
            elif not all(record.judged for record in rollout):
                self.counts.unjudged += 1
                self._give(1)
            else:
                self.counts.read += 1
                out.append(rollout)
        self._held += len(out)
        return out

    def trained(self) -> int:
        """Say that the batch taken last was trained on and the makers have the new weights; return their version."""
        self.version += 1
        held, self._held = self._held, 0
        self._give(held)
        return self.version

    def _give(self, count: int) -> None:
        self._credits += count
        self._wake(count)

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            turn = self._waiting.popleft()
            # Who was cancelled while it waited wants no credit.
            if not turn.done():
                turn.set_result(None)
                count -= 1
