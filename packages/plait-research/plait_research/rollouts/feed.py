"""Pass rollouts from producers to a trainer, while both run.

Nothing is dropped because a queue is full: a rollout starts only with a credit, and there are as many credits as
rollouts may be ahead of the trainer. `staleness` s is that of asynchronous RL (AsyncFlow, arXiv 2507.01663; verl): with
`batch` rollouts per step, at most `(1 + s) * batch` are running, waiting, or in training. With s = 0 the producers wait
while the trainer trains, so a step takes the sum of both times; from s = 1 on it takes the longer of the two.

Credits alone cannot guarantee freshness (a rollout may take long), so age is checked again when a batch is taken.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence

from plait.core.errors import UsageError

from .advantages import Credit, weighed
from .record import Record
from .store import SkipCounts


class Feed:
    """Between makers and one trainer, in one event loop.

    Args:
        batch: rollouts of a training step.
        staleness: how far, in steps, makers may be ahead; 0 is synchronous.
        max_staleness: most updates between the oldest token of a rollout and the step that trains on it; the next
            larger integer of `staleness` if left out.
        group: rollouts of a prompt. They are given out together, for an advantage is one among them.
        credit: whose advantage threads have that are judged by themselves; see `weighed`.
    """

    def __init__(
        self,
        batch: int,
        staleness: float = 0.0,
        max_staleness: int | None = None,
        *,
        group: int = 1,
        credit: Credit = "rollout",
    ) -> None:
        if batch < 1 or not 0 <= staleness < math.inf:
            raise UsageError("a feed has a batch of 1 or more, and a staleness of 0 or more")
        if group < 1 or batch % group:
            raise UsageError(f"a batch of {batch} is not made of groups of {group}: give a multiple of the group")
        self.batch, self.group = batch, group
        self.max_staleness = math.ceil(staleness) if max_staleness is None else max_staleness
        self.version = 0
        """Of the weights that are trained; counts steps."""
        self.counts = SkipCounts()
        self._by: Credit = credit
        self._credits = round((1 + staleness) * batch)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._forming: dict[str, list[list[Record]]] = {}
        """Groups that lack rollouts, by name."""
        self._ready: deque[list[list[Record]]] = deque()
        """Groups that are whole."""
        self._filled = asyncio.Event()
        self._held = 0
        """Credits of the rollouts that the trainer trains on, and of what was left out of their groups."""

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
        self._join(rollout[0].group, list(rollout))

    def forfeit(self, group: str = "") -> None:
        """Return the credit of a failed rollout; `group`: its group, if groups are used."""
        if self.group == 1:
            self._give(1)
        else:
            self._join(group, [])

    def _join(self, name: str, rollout: list[Record]) -> None:
        group = self._forming.setdefault(name, [])
        group.append(rollout)
        if len(group) == self.group:
            self._ready.append(self._forming.pop(name))
            self._filled.set()

    async def take(self) -> list[list[Record]]:
        """Return the rollouts of the next step, as soon as there are enough that are fresh and judged: whole groups,
        with their advantages, less what had to be left out of them. Credits of a group that is left out as a whole are
        given back at once, so that another is made in its place."""
        out: list[list[Record]] = []
        for _ in range(self.batch // self.group):
            # A rollout alone in its group has no other to be compared with.
            while len(kept := await self._next()) < min(2, self.group):
                self._give(self.group)
            out += kept
        self._held += self.batch
        return weighed(out, self._by) if self.group > 1 else out

    async def _next(self) -> list[list[Record]]:
        """Return the rollouts of the next group that may be trained on."""
        while not self._ready:
            self._filled.clear()
            await self._filled.wait()
        group = sorted(filter(None, self._ready.popleft()), key=lambda rollout: rollout[0].branch)
        return [rollout for rollout in group if self._wanted(rollout)]

    def _wanted(self, rollout: list[Record]) -> bool:
        oldest = min((version for record in rollout for version in record.versions), default=self.version)
        if self.version - oldest > self.max_staleness:
            self.counts.stale += 1
        elif not all(record.judged for record in rollout):
            self.counts.unjudged += 1
        else:
            self.counts.read += 1
            return True
        return False

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
