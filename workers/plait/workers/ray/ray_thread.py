"""The one thread of this process that joins and leaves Ray.

Ray asks the kernel to kill the processes of a local cluster when their parent ends (`PR_SET_PDEATHSIG`), and to the
kernel the parent is the thread that started them. A thread of an event loop's pool ends with its loop, and would take
the cluster from everybody else; this one lasts as long as the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def submit(call: Callable[[], T]) -> Future[T]:
    """Queue `call` behind the calls submitted before it. It runs even if the caller is cancelled."""
    global _thread
    future: Future[T] = Future()
    _calls.put((call, future))
    with _starting:
        if _thread is None or not _thread.is_alive():  # a forked process has none
            _thread = threading.Thread(target=_serve, name="plait-ray", daemon=True)
            _thread.start()
    return future


async def through(call: Callable[[], T]) -> T:
    """Make a call there and await its end, also when cancelled meanwhile: the cancellation is raised after it."""
    done = asyncio.wrap_future(submit(call))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise


def _serve() -> None:
    while True:
        call, future = _calls.get()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del call, future  # keep nothing alive while idle
