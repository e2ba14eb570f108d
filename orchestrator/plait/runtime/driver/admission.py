"""Limit the number of waiting runs. An unbounded queue would delay all of them; this one rejects new runs.

A run waits while it has no attempt, a measure that does not depend on the scheduler's order. By Little's law
(`L = λ·W`), the waiting time of a run is the number of waiting runs divided by the runs that end per second.
"""

from __future__ import annotations

from collections import deque

from ...core.errors import Overloaded
from ...core.messages import pluralise
from ...machine import Machine

_ENDS = 256
"""Number of latest ends of runs that determine the rate."""


class Admission:
    """Rejects runs above a limit. Pure: callers pass the time.

    Args:
        most: maximum number of waiting runs; `None`: no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._ends: deque[float] = deque(maxlen=_ENDS)
        """Times at which runs ended, since the queue was last empty."""
        self._since = 0.0
        self._known: float | None = None
        """Seconds per run from the last time that runs waited."""

    def record_end(self, at: float) -> None:
        """Record the end of a run."""
        if self.most is not None:
            self._ends.append(at)

    def seconds(self, waiting: int, now: float) -> float | None:
        """Return the seconds to serve `waiting` runs at the recent rate, or `None` before the first end."""
        interval = self._each(now)
        return None if interval is None else waiting * interval

    def _each(self, now: float) -> float | None:
        if not self._ends:
            return self._known
        since = self._since if len(self._ends) < _ENDS else self._ends[0]
        return max(now - since, 1e-6) / len(self._ends)

    def check(self, machine: Machine, now: float, coming: int = 0) -> None:
        """Raise `Overloaded` if one more run would exceed the limit; `coming` runs were accepted but not yet submitted
        to the machine."""
        if self.most is None:
            return
        free = sum(max(0, worker.free) for worker in machine.workers.values() if worker.up and "think" in worker.serves)
        waiting = max(0, coming - free) + machine.waiting_runs
        # Ends count only while runs wait: an idle server ends few runs, which is not its rate under load.
        if not waiting:
            self._known, self._since = self._each(now), now
            self._ends.clear()
        if waiting < self.most:
            return
        wait = self.seconds(waiting + 1, now)
        estimate = (
            "the waiting time is unknown, as no run has ended yet"
            if wait is None
            else (f"at the present rate it would wait about {wait:.2g} s")
        )
        raise Overloaded(
            f"{pluralise(waiting, 'run')} of {self.most} allowed (max_waiting) are waiting, and one more is rejected: "
            f"{estimate}; send it again then, add engines, or raise max_waiting",
            wait,
        )
