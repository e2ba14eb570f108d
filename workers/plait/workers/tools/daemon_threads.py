"""Daemon threads for functions that may never return.

A function that hangs blocks nothing, unlike with `concurrent.futures`: the next function gets a new thread, and the
process can exit. Functions pass their results on themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

IDLE_SECONDS = 10.0
"""An idle thread ends after this."""


Inbox = SimpleQueue[Callable[[], None] | None]


class ThreadPool:
    """Runs functions on threads that are used again while they last. `submit` is called from one thread only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        self._started = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, on an idle thread or a new one."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            self._started += 1
            inbox = Inbox()
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put(work)

    def close(self) -> None:
        """End the idle threads; a busy one ends when its function does."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: Inbox) -> None:
        work = inbox.get()
        while work is not None:
            work()
            del work  # keep nothing of it alive while idle
            with self._lock:
                self._idle.append(inbox)
            work = self._next(inbox)

    def _next(self, inbox: Inbox) -> Callable[[], None] | None:
        try:
            return inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # it was taken for a job at the last moment
