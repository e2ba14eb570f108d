"""An event loop on its own thread, which runs coroutines for the synchronous façade."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...core.errors import UsageError

log = logging.getLogger("plait.client")

CLOSE_TIMEOUT_S = 60.0
"""Timeout in seconds for closing; after it the loop is abandoned, and waiting callers get an error."""
CANCEL_TIMEOUT_S = 5.0
"""Timeout in seconds for tasks on the loop to end after their cancellation."""

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads until `close`, which finally runs `clean_up` on the loop."""

    def __init__(self, clean_up: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop = asyncio.new_event_loop()
        self._clean_up = clean_up
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=_serve, args=(self.loop,), name="plait-loop", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T] | Any) -> T:
        """Run a coroutine or awaitable and return its result. Ctrl-C cancels the coroutine.

        Raises `UsageError` on the loop's own thread, in a forked process, and after `close`.
        """
        over = threading.Event()
        call = _as_coroutine(work, over)
        why = self._refusal()
        with self._lock if why is None else threading.Lock():
            if why is None and self._closed:
                why = "this orchestrator was closed; make a new one"
            if why is not None:
                call.close()
                if asyncio.iscoroutine(work):
                    work.close()
                raise UsageError(why)
            future = asyncio.run_coroutine_threadsafe(call, self.loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            over.wait(15)  # an exiting generator must finish its exit before it can be closed
            raise
        except concurrent.futures.CancelledError:
            if not self._closed:
                raise
            raise UsageError("this orchestrator was closed while this call waited; make a new one") from None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, some time; not once that is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def _refusal(self) -> str | None:
        if os.getpid() != self._process:
            return (
                "this orchestrator was made before this process was forked, and its event loop runs in the other one: "
                "make one in this process, or start processes with multiprocessing's `spawn`"
            )
        if threading.current_thread() is self._thread:
            return (
                "this orchestrator was called on its own event loop, as by an async tool of its own, and would wait "
                "for itself for ever: make that tool an ordinary function, or give it an orchestrator of its own"
            )
        return None

    def close(self) -> None:
        """Clean up and end the thread. Callers that wait in `do` get an error. May be called twice and from any thread
        but the loop's own, where it raises `UsageError`."""
        if os.getpid() != self._process:
            return  # the resources belong to the process that created them
        if threading.current_thread() is self._thread:
            raise UsageError(
                "`close` was called on the orchestrator's own event loop, as by an async tool of its own, and would "
                "wait for itself: call it where the orchestrator was made"
            )
        with self._lock:
            first, self._closed = not self._closed, True
        if not first:
            self._over.wait(CLOSE_TIMEOUT_S + 2 * CANCEL_TIMEOUT_S)
            return
        try:
            asyncio.run_coroutine_threadsafe(self._clean_up(), self.loop).result(timeout=CLOSE_TIMEOUT_S)
        except Exception as error:
            log.warning("the orchestrator could not be closed in good order: %s: %s", type(error).__name__, error)
        finally:
            self._leave()
            self._thread.join(timeout=2 * CANCEL_TIMEOUT_S)
            for future in list(self._calls):
                future.cancel()
            self._over.set()

    def forget(self) -> None:
        """Close the loop after its last reference is dropped: on its own thread, without waiting."""
        if threading.current_thread() is not self._thread:
            self.close()
        elif not self._closed:
            threading.Thread(target=self.close, name="plait-close", daemon=True).start()

    def _leave(self) -> None:
        """Cancel all remaining tasks on the loop, then stop the loop."""
        asyncio.run_coroutine_threadsafe(_end_all(), self.loop).add_done_callback(
            lambda _: self.loop.call_soon_threadsafe(self.loop.stop)
        )


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _end_all() -> None:
    """Cancel all other tasks of this loop, and wait briefly for their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _as_coroutine(work: Any, over: threading.Event) -> Any:
    try:
        return await work
    finally:
        over.set()
