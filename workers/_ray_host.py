"""The inside of a Ray actor: one worker, its jobs as tasks, its news in batches.

Everything that happens to all jobs leaves through one call that waits for news, so that the number of messages follows
the engine's steps and not its tokens. It does not import Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Sequence
from typing import Any

from orchestrator.core.base import Progress, Worker
from orchestrator.core.errors import PlaitError, WorkerError, as_failure
from orchestrator.core.events import Job
from orchestrator.core.ir import Failure, Result

from ._stream import together

News = tuple[int, Progress | Result | Failure]
"""An attempt and what is new of it."""


FACTS = ("slots", "models", "cache_tokens", "block")
"""What a worker may know of itself only when it has started."""
GATHER_SECONDS = 0.004
"""How long progress waits for more before it goes out."""


def load(spec: str, options: dict[str, Any]) -> Worker:
    """Return the worker that `pkg.mod:Class` and its options mean, not started. Raises `WorkerError`."""
    module, _, name = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(**options)
    except PlaitError:
        raise
    except Exception as error:
        raise WorkerError(f"the worker {spec!r} cannot be made: {type(error).__name__}: {error}") from error


class Host:
    """An actor that hosts a worker."""

    def __init__(self, spec: str, options: dict[str, Any]) -> None:
        self._worker = load(spec, options)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()
        """Attempts that the worker knows."""
        self._early: set[int] = set()
        """Attempts cancelled before the worker knew them."""
        self._next = 0
        self._calls: dict[int, tuple[Sequence[Job], Sequence[int]]] = {}
        """Calls of `submit` that overtook others, by number: an async actor does not take them in order."""
        self._news: list[News] = []
        self._latest: dict[int, int] = {}
        """Where in `_news` the unread progress of an attempt stands."""
        self._some = asyncio.Event()
        self._ended = asyncio.Event()

    async def start(self) -> tuple[int, str | None, dict[str, Any]]:
        """Start the worker; return the process id, what went wrong (an exception of Ray's would hide the cause), and
        what is known of the worker now."""
        try:
            await self._worker.start()
        except Exception as error:
            return os.getpid(), str(error) or repr(error), {}
        return os.getpid(), None, {name: getattr(self._worker, name) for name in FACTS if hasattr(self._worker, name)}

    async def submit(self, number: int, jobs: Sequence[Job], given_up: Sequence[int] = ()) -> None:
        """Start jobs, whose news come out of `news`, and cancel attempts. Calls are numbered from 0 and take effect in
        that order, so that a cancel never comes before its job."""
        self._calls[number] = (jobs, given_up)
        while (call := self._calls.pop(self._next, None)) is not None:
            self._next += 1
            for job in call[0]:
                self._tasks[job.attempt] = asyncio.create_task(self._work(job))
            for attempt in call[1]:
                if attempt in self._begun:
                    with contextlib.suppress(Exception):  # the others are to be cancelled all the same
                        await self._worker.cancel(attempt)
                elif attempt in self._tasks:
                    self._early.add(attempt)

    async def news(self) -> list[News]:
        """Wait until there is news, and return all of it. An end goes out at once; progress alone waits a little for
        more of it, since a message costs about as much as an engine step for a few requests."""
        await self._some.wait()
        if not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), GATHER_SECONDS)
        self._some.clear()
        self._ended.clear()
        news, self._news = self._news, []
        self._latest.clear()
        return news

    async def watch(self) -> bool:
        """Wait until the worker's health changes for the worse; return whether it may come back."""
        async for healthy in self._worker.health():
            if not healthy:
                return True
        return False

    async def answers(self) -> bool:
        """Say that the actor's loop turns."""
        return True

    async def stats(self) -> dict[str, int]:
        """Return the worker's counters, if it has any."""
        stats = getattr(self._worker, "stats", None)
        return stats() if stats is not None else {}

    async def close(self) -> None:
        """Free the worker."""
        await self._worker.close()

    async def _work(self, job: Job) -> None:
        attempt = job.attempt
        last: Progress | Result | Failure | None = None
        self._begun.add(attempt)
        try:
            if attempt in self._early:
                self._early.discard(attempt)
                last = Result(value="", finish="cancelled")
                self._post(attempt, last)
                return
            async for last in self._worker.run(job):
                self._post(attempt, last)
        except Exception as error:
            last = as_failure(error)
            self._post(attempt, last)
        finally:
            self._tasks.pop(attempt, None)
            self._begun.discard(attempt)
            if last is None or isinstance(last, Progress):
                self._post(attempt, as_failure(WorkerError("the hosted worker ended this job without a result")))

    def _post(self, attempt: int, item: Progress | Result | Failure) -> None:
        if not isinstance(item, Progress):
            self._ended.set()
        elif (at := self._latest.get(attempt)) is not None and isinstance(last := self._news[at][1], Progress):
            self._news[at] = (attempt, together((last, item)))
            return
        else:
            self._latest[attempt] = len(self._news)
        self._news.append((attempt, item))
        self._some.set()
