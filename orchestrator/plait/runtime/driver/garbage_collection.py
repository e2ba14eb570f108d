"""Python's garbage collector while runs are under way.

It looks for cycles each time a few hundred more objects have been made, and every now and then among all that there
are. A plan of 100,000 steps is nearly a million objects, none of which may go: a third of the machine's time went into
finding that out, in pauses of a quarter of a second. So while any run is under way the collector is called less often
(`THRESHOLDS`), and what there is when a large plan has entered, or its report is made, is left out (`gc.freeze`) until
`PUT_OFF` seconds after its end. What is left out and no longer used goes all the same, unless it is in a cycle.

A server's process leaves out what it is made of, too (`settle`): to look at that takes some 50 ms.

Both are settings of the whole process. They are put back; `Config.collector` turns this off. Nothing is touched in a
process that has disabled its collector, or that keeps objects frozen by itself.
"""

from __future__ import annotations

import contextlib
import gc
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Generator
from threading import Lock

THRESHOLDS = (10_000, 10, 10)
"""Python's own are (700, 10, 10)."""
FROZEN = 5_000
"""Steps of a plan from which on it is frozen."""

PUT_OFF = 5.0
"""Seconds after a large run until its objects are looked at, which is a pause."""

_lock = Lock()
_running = 0
"""Runs under way in this process."""
_frozen = 0
"""Runs whose objects are frozen."""
_settled = False
"""What the process is made of is frozen for good."""
_without = 0
"""Threads that do something without the collector."""
_before: tuple[int, int, int] | None = None
"""The application's thresholds."""


class Collector:
    """Keeps the collector out of the way of one driver's runs, if `on`."""

    def __init__(self, loop: AbstractEventLoop, on: bool = True) -> None:
        self._loop = loop
        self._on = on
        self._runs: dict[str, bool] = {}
        """Those under way, and whether their plan is frozen."""
        self._put_off: set[TimerHandle] = set()

    def began(self, run: str) -> None:
        """A run is under way."""
        if self._on and run not in self._runs:
            self._runs[run] = False
            _hold()

    def entered(self, run: str, steps: int) -> None:
        """A plan of so many steps has entered a run. May be called on a thread."""
        if steps >= FROZEN and self._runs.get(run) is False and _freeze():
            self._runs[run] = True

    def reported(self, run: str) -> None:
        """The report of a run is made. May be called on a thread."""
        if self._runs.get(run):
            gc.freeze()

    def ended(self, run: str) -> None:
        """A run is over, and its records are let go."""
        if run not in self._runs:
            return
        frozen = self._runs.pop(run)
        _release()
        if frozen:
            timer = self._loop.call_later(PUT_OFF, lambda: self._thaw(timer))
            self._put_off.add(timer)

    def close(self) -> None:
        """All runs are over."""
        for run in list(self._runs):
            self.ended(run)
        for timer in list(self._put_off):
            timer.cancel()
            self._thaw(timer)

    def _thaw(self, timer: TimerHandle) -> None:
        self._put_off.discard(timer)
        _thaw()


def _hold() -> None:
    global _running, _before
    with _lock:
        _running += 1
        if _running == 1 and (_without or gc.isenabled()) and 0 < gc.get_threshold()[0] < THRESHOLDS[0]:
            _before = gc.get_threshold()
            gc.set_threshold(*THRESHOLDS)


def settle() -> None:
    """Leave out all that there is by now, as long as the process lives: modules, classes, a server's own objects."""
    global _settled
    with _lock:
        _settled = True
        gc.collect()
        gc.freeze()


def _freeze() -> bool:
    global _frozen
    with _lock:
        if not _frozen and (not (_without or gc.isenabled()) or (gc.get_freeze_count() and not _settled)):
            return False
        _frozen += 1
        gc.freeze()
        return True


def _thaw() -> None:
    global _frozen
    with _lock:
        _frozen -= 1
        if not _frozen:
            gc.unfreeze()
            if _settled:  # it thaws everything
                gc.collect()
                gc.freeze()


def _release() -> None:
    global _running, _before
    with _lock:
        _running -= 1
        if not _running and _before is not None:
            if gc.get_threshold() == THRESHOLDS:  # else the application has set others meanwhile
                gc.set_threshold(*_before)
            _before = None


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Do something without the collector, which would stop all threads and find nothing: what is made stays."""
    global _without
    with _lock:
        collects = _without > 0 or gc.isenabled()
        _without += collects
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _without -= collects
            if collects and not _without:
                gc.enable()
