"""Stop plugin code that blocks the event loop's thread, such as `while True: pass` in a flow.

A thread checks the running code. Code that has run for too long gets an exception at its current line
(`PyThreadState_SetAsyncExc`). The exception is raised only while that code itself is on the stack, never in plait's
code. A call into C that does not return cannot be stopped.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from pathlib import Path
from sys import _current_frames  # pyright: ignore[reportPrivateUsage]
from types import CodeType, FrameType

log = logging.getLogger("plait.watchdog")

_POLL = 0.25
"""Seconds between two checks."""
_OURS = ("plait.core.", "plait.runtime.")
_IDLE = 40
"""Number of checks without watched code after which the thread ends."""


class TooLong(BaseException):
    """Raised in code that does not come to an end. No `Exception`, so that `except Exception` does not catch it."""


class WatchSpan:
    """One stretch of code that is watched."""

    __slots__ = ("before", "seconds", "spent", "where")

    def __init__(self, seconds: float, before: WatchSpan | None) -> None:
        self.seconds: float = seconds
        self.before: WatchSpan | None = before
        self.spent: float = 0.0
        """Seconds that were seen to pass. A process that is stopped for a while does not count as code that runs."""
        self.where: str = ""
        """Where the code was when it was stopped."""

    def words(self) -> str:
        """Return the message about code that was stopped."""
        return (
            f"it ran for {self.seconds:g} s without waiting for a step, {self.where}, which blocks everything else; "
            "await steps, and make long work a tool"
        )


class Watchdog:
    """Watches one stretch of code in each thread."""

    def __init__(self) -> None:
        self._watched: dict[int, WatchSpan] = {}
        self._guards: set[CodeType] = set()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def guards(self, function: CodeType) -> None:
        """Register a function that calls watched code. Only the code that it calls is stopped, never itself."""
        self._guards.add(function)

    def begin(self, seconds: float) -> WatchSpan:
        """Watch this thread's code from now on."""
        thread = threading.get_ident()
        watched = self._watched[thread] = WatchSpan(seconds, self._watched.get(thread))
        if self._thread is None:
            self._start()
        return watched

    def end(self, watched: WatchSpan) -> None:
        """Stop watching it."""
        thread = threading.get_ident()
        if watched.before is None:
            self._watched.pop(thread, None)
        else:
            self._watched[thread] = watched.before

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._look, name="plait-watchdog", daemon=True)
        self._thread.start()

    def _forget(self) -> None:
        self._watched.clear()
        self._thread = None

    def _look(self) -> None:
        idle, last = 0, time.monotonic()
        while idle < _IDLE:
            time.sleep(_POLL)
            now = time.monotonic()
            passed, last = min(now - last, 2 * _POLL), now
            idle = 0 if self._watched else idle + 1
            for thread, watched in list(self._watched.items()):
                watched.spent += passed
                if watched.spent >= watched.seconds:
                    self._stop(thread, watched)
        self._thread = None
        if self._watched:  # it came between the last look and the end
            self._start()

    def _stop(self, thread: int, watched: WatchSpan) -> None:
        """Raise `TooLong` in a thread, if it still runs the watched code.

        This thread holds the interpreter's lock for these few lines, so the other thread continues at the line that was
        seen here, with the exception.
        """
        top = _current_frames().get(thread)
        frames: list[FrameType] = []
        frame = top
        while frame is not None and frame.f_code not in self._guards:
            frames.append(frame)
            frame = frame.f_back
        if frame is None or not frames or self._watched.get(thread) is not watched:
            return
        if any(frame.f_code.co_filename == __file__ or frame.f_trace is not None for frame in frames):
            return  # the watch is ending, or a debugger holds the code
        theirs = [frame for frame in frames if not str(frame.f_globals.get("__name__")).startswith(_OURS)]
        if not theirs:
            return
        own = theirs[-1]
        watched.where = f"at line {own.f_lineno} of {Path(own.f_code.co_filename).name} in {own.f_code.co_name}"
        if _current_frames().get(thread) is top:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TooLong))
        log.warning("stopped after %g s, %s", watched.spent, watched.where)
        watched.spent = 0.0


WATCHDOG = Watchdog()
"""That of the process."""
