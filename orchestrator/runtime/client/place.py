"""Where an orchestrator may be used: in the process and on the event loop on which it was started, with workers that no
other one has."""

from __future__ import annotations

import asyncio
import os
import weakref

from ...core.errors import UsageError
from ...core.interfaces import Worker


class Place:
    """The process and the event loop of one orchestrator."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def same_process(self) -> bool:
        """Whether this is the process that it was made in."""
        return os.getpid() == self._process

    @property
    def elsewhere(self) -> bool:
        """Whether this is another process, or another event loop than the one that it was started on."""
        return not self.same_process or self._loop not in (None, asyncio.get_running_loop())

    def enter(self) -> None:
        """Demand to be where it was started; the first time decides. Raises `UsageError`."""
        if not self.same_process:
            raise UsageError(
                "this orchestrator was made before this process was forked, and its event loop runs in the other one: "
                "make one in this process, or start processes with multiprocessing's `spawn`"
            )
        if self.elsewhere:
            raise UsageError(
                "this orchestrator was started on another event loop (each `asyncio.run` makes a new one): make one "
                "inside each, or use `Orchestrator`, which has a loop of its own"
            )
        self._loop = asyncio.get_running_loop()

    def leave(self) -> None:
        """Give its workers free for others."""
        for worker in [each for each, place in _EMPLOYED.items() if place() is self]:
            del _EMPLOYED[worker]


_EMPLOYED: dict[int, weakref.ref[Place]] = {}
"""By the identity of a worker: who has it. An orchestrator that is forgotten unclosed takes its workers with it."""


def employ(worker: Worker, place: Place) -> None:
    """Note that an orchestrator has a worker. Raises `UsageError` if another one has: the numbers of attempts of two
    would be taken for one another's."""
    known = _EMPLOYED.get(id(worker))
    other = known() if known is not None else None
    if other is not None and other is not place:
        raise UsageError(
            f"the worker {worker.name!r} works for another orchestrator, which is not closed: give each its own"
        )
    _EMPLOYED[id(worker)] = weakref.ref(place)
