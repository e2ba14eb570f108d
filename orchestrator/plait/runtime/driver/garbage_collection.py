"""Run Python's garbage collector less often while runs are active.

The collector searches for cycles after every few hundred new objects, and now and then among all objects. A plan of
100,000 steps is nearly a million objects, all in use: searching them took a third of the machine's time, in pauses of a
quarter of a second. While any run is active the thresholds are therefore higher (`THRESHOLDS`), and the objects that
exist when a large plan has entered, or its report is complete, are frozen (`gc.freeze`) until `THAW_DELAY_S` after its
end. Frozen objects that are no longer used are still freed, unless they are in a cycle.

A server's process also freezes its own modules and classes (`settle`): searching them takes some 50 ms.

Both are settings of the whole process. They are restored; `Config.collector` turns this off. Nothing is changed in a
process that has disabled its collector, or that keeps objects frozen by itself.
"""

from __future__ import annotations

import contextlib
import gc
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Generator
from threading import Lock

THRESHOLDS = (10_000, 10, 10)
"""Thresholds while runs are active; Python's defaults are (700, 10, 10)."""
FREEZE_PLAN_STEPS = 5_000
"""Minimum steps of a plan that is frozen."""

THAW_DELAY_S = 5.0
"""Delay in seconds after a large run before its objects are searched, which is a pause."""

_lock = Lock()
_running = 0
"""Active runs in this process."""
_frozen = 0
"""Runs whose objects are frozen."""
_settled = False
"""The process's own objects are frozen for good."""
_without = 0
"""Threads that work with the collector disabled."""
_before: tuple[int, int, int] | None = None
"""The application's thresholds."""


class Collector:
    """Reduces collections during one driver's runs, if `on`."""

    def __init__(self, loop: AbstractEventLoop, on: bool = True) -> None:
        self._loop = loop
        self._on = on
        self._runs: dict[str, bool] = {}
        """Active runs, and whether their plan is frozen."""
        self._put_off: set[TimerHandle] = set()

    def began(self, run: str) -> None:
        """Raise the thresholds for a run that begins."""
        if self._on and run not in self._runs:
            self._runs[run] = False
            _hold()

    def entered(self, run: str, steps: int) -> None:
        """Freeze the plan of a run if it is large. May be called on a thread."""
        if steps >= FREEZE_PLAN_STEPS and self._runs.get(run) is False and _freeze():
            self._runs[run] = True

    def reported(self, run: str) -> None:
        """Freeze the report of a large run. May be called on a thread."""
        if self._runs.get(run):
            gc.freeze()

    def ended(self, run: str) -> None:
        """Restore the thresholds after the last run, and thaw a large run later."""
        if run not in self._runs:
            return
        frozen = self._runs.pop(run)
        _release()
        if frozen:
            timer = self._loop.call_later(THAW_DELAY_S, lambda: self._thaw(timer))
            self._put_off.add(timer)

    def close(self) -> None:
        """End all runs, and thaw at once."""
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
        # Only if the application's own threshold is lower: a process that collects rarely by choice keeps its setting.
        if _running == 1 and (_without or gc.isenabled()) and 0 < gc.get_threshold()[0] < THRESHOLDS[0]:
            _before = gc.get_threshold()
            gc.set_threshold(*THRESHOLDS)


def settle() -> None:
    """Freeze all present objects for the life of the process: modules, classes, a server's own objects."""
    global _settled
    with _lock:
        _settled = True
        gc.collect()  # before the freeze, which would keep garbage cycles for ever
        gc.freeze()


def _freeze() -> bool:
    global _frozen
    with _lock:
        # Frozen objects that are not ours would be thawed by `_thaw`, so such a process is left alone.
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
            if _settled:  # `unfreeze` has thawed the process's own objects too
                gc.collect()
                gc.freeze()


def _release() -> None:
    global _running, _before
    with _lock:
        _running -= 1
        if not _running and _before is not None:
            if gc.get_threshold() == THRESHOLDS:  # otherwise the application has set its own meanwhile
                gc.set_threshold(*_before)
            _before = None


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Disable the collector in a block that makes only lasting objects: it would stop all threads and find nothing."""
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
