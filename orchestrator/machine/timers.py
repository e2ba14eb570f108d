"""When the machine wants to be woken, and for which record. `machine.py` says what follows when a timer is due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..core.states import WAITING
from .records import Account, Attempt, Node, Run

TimerKind = Literal["retry", "deadline", "cancel", "lease", "seconds", "review"]
Subject = Node | Attempt | Run | tuple[Account, Run]


class Timer(NamedTuple):
    """One wish to be woken."""

    at: float
    order: int
    kind: TimerKind
    subject: Subject

    @property
    def stale(self) -> bool:
        """Whether its record no longer waits for it: a step has moved on, an attempt is gone, a run is over."""
        match self.subject:
            case Node() as node:
                return node.state is not WAITING
            case Attempt() as attempt:
                return attempt.state == "gone"
            case Run() as run:
                return run.over
            case (_, run):
                return run.over


@dataclass(slots=True, eq=False)
class Timers:
    """Timers by time, then by the order in which they were set."""

    heap: list[Timer] = field(default_factory=list[Timer])
    """Those that are set, stale ones among them; the first is the next."""
    _order: int = 0
    _armed: float | None = None
    _sweep_at: int = 64

    def add(self, at: float, kind: TimerKind, subject: Subject) -> None:
        """Set a timer. Now and then stale ones are thrown out, since they keep whole runs in memory."""
        if len(self.heap) >= self._sweep_at:
            self.heap = [timer for timer in self.heap if not timer.stale]
            heapq.heapify(self.heap)
            self._sweep_at = max(64, 2 * len(self.heap))
        self._order += 1
        heapq.heappush(self.heap, Timer(at, self._order, kind, subject))

    def due(self, now: float) -> Iterator[Timer]:
        """Take out and yield the timers whose time has come."""
        self._armed = None
        while self.heap and self.heap[0].at <= now:
            yield heapq.heappop(self.heap)

    def arm(self) -> float | None:
        """Return the earliest time to be woken at if it is not the one asked for last."""
        if not self.heap:
            return None
        while self.heap and self.heap[0].stale:
            heapq.heappop(self.heap)
        if not self.heap or self.heap[0].at == self._armed:
            return None
        self._armed = self.heap[0].at
        return self._armed

    def of(self, run: Run) -> Iterator[Timer]:
        """Yield a run's timers that are not stale, in the order in which they were set."""
        yield from sorted(
            (timer for timer in self.heap if not timer.stale and _run_of(timer) is run), key=lambda timer: timer.order
        )

    def pending(self, run: Run) -> bool:
        """Whether a timer that is not stale will move a run (a policy's review is only a look at it)."""
        return any(not timer.stale and timer.kind != "review" and _run_of(timer) is run for timer in self.heap)


def _run_of(timer: Timer) -> Run:
    match timer.subject:
        case Node() as node:
            return node.run
        case Attempt() as attempt:
            return attempt.node.run
        case Run() as run:
            return run
        case (_, run):
            return run
