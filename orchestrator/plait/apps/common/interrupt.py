"""Run a command's coroutine under Ctrl-C: the first one asks for a clean end, the second one exits at once.

The coroutine defines a clean end (`Stopper.then`, `Stopper.until`). SIGTERM counts as Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

log = logging.getLogger("plait.apps")

T = TypeVar("T")

_SHOW_CURSOR = "\x1b[?25h"


class CommandInterrupted(Exception):
    """The user gave the command up while something was awaited that has no partial result."""


class Stopper:
    """Whether the user has asked for the end, and what is to be done then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requested: bool = False
        self._loop = loop
        self._signals = 0
        self._then: list[Callable[[], object]] = []

    def then(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called on the loop when the end is asked for (now, if it has been); return its revoker."""
        self._then.append(callback)
        if self.requested:
            callback()

        def revoke() -> None:
            with contextlib.suppress(ValueError):
                self._then.remove(callback)

        return revoke

    async def until(self, work: Awaitable[T]) -> T:
        """Await something, or cancel it and raise `CommandInterrupted` when the end is asked for."""
        task = asyncio.ensure_future(work)
        revoke = self.then(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            if self.requested:
                raise CommandInterrupted from None
            raise
        finally:
            revoke()

    def signalled(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; runs between two instructions of the main thread."""
        self._signals += 1
        if self._signals > 1:
            leave_at_once(128 + number)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the end is near anyway
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.requested = True
        for callback in list(self._then):
            callback()


def leave_at_once(code: int) -> None:
    """End the process and all that it started, without any clean-up but the terminal's."""
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno(), _SHOW_CURSOR.encode())
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, directly or not, and that are there still; needs /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything; after it come the state and the parent.
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    pids = [pid]
    for process in pids:
        pids.extend(children.get(process, []))
    return pids[1:]


def run_stoppable(work: Callable[[Stopper], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a new loop. Raises `KeyboardInterrupt` where it raises `CommandInterrupted`."""
    runner = asyncio.Runner()
    runner.get_loop().set_exception_handler(_forgotten)
    stopper = Stopper(runner.get_loop())
    restore = _install(stopper)
    try:
        with runner:
            return runner.run(work(stopper))
    except CommandInterrupted:
        raise KeyboardInterrupt from None
    finally:
        restore()


def _forgotten(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the error of a task without an awaiter, as happens after a cancellation: the prompt must not show it."""
    log.debug("%s: %r", context.get("message"), context.get("exception"))


def _install(stopper: Stopper) -> Callable[[], None]:
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    # Not loop.add_signal_handler: a second Ctrl-C has to work while the loop is held up, too.
    before = {number: signal.signal(number, stopper.signalled) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


@contextlib.contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Call handlers on the running loop at signals; threads other than the main one get none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
