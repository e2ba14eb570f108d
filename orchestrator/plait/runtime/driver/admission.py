"""Whether one more run is taken while others wait. A queue without a bound makes all of them late; this one refuses.

A run waits while nothing of it is under way, which is the same measure whatever order the scheduler serves runs in: by
Little's law (`L = λ·W`) runs that wait, divided by the runs that end in a second, is how long one of them waits.
"""

from __future__ import annotations

from collections import deque

from ...core.errors import Overloaded
from ...core.messages import pluralise
from ...machine import Machine

_ENDS = 256
"""Ends of runs that the rate is taken of."""


class Admission:
    """Refuses runs beyond a bound. Pure: it is told the time.

    Args:
        most: runs that may wait; `None`: any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._ends: deque[float] = deque(maxlen=_ENDS)
        """When runs ended, since it last happened that none waited."""
        self._since = 0.0
        self._known: float | None = None
        """Seconds of a run, by the last time that some waited."""

    def ended(self, at: float) -> None:
        """Take note that a run has ended."""
        if self.most is not None:
            self._ends.append(at)

    def seconds(self, waiting: int, now: float) -> float | None:
        """Return the seconds until so many runs have been served at the rate of late; `None` before any has ended."""
        interval = self._each(now)
        return None if interval is None else waiting * interval

    def _each(self, now: float) -> float | None:
        if not self._ends:
            return self._known
        since = self._since if len(self._ends) < _ENDS else self._ends[0]
        return max(now - since, 1e-6) / len(self._ends)

    def check(self, machine: Machine, now: float, coming: int = 0) -> None:
        """Raise `Overloaded` if a run more would be too many; `coming` have been taken that the machine has not heard
        of."""
        if self.most is None:
            return
        free = sum(max(0, worker.free) for worker in machine.workers.values() if worker.up and "think" in worker.serves)
        waiting = max(0, coming - free) + machine.waiting_runs
        if not waiting:
            self._known, self._since = self._each(now), now
            self._ends.clear()
        if waiting < self.most:
            return
        wait = self.seconds(waiting + 1, now)
        estimate = (
            "how long it would take is not known, as no run has ended yet"
            if wait is None
            else (f"at the present rate it would wait about {wait:.2g} s")
        )
        raise Overloaded(
            f"{pluralise(waiting, 'run')} of {self.most} allowed (max_waiting) are waiting, and one more is not taken: "
            f"{estimate}; send it again then, add engines, or raise max_waiting",
            wait,
        )
