"""The ended runs of a client that its planners learn from (a hook of plait)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue

from plait.core.errors import PlaitError, UsageError
from plait.core.interfaces import Planner
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.task import Task
from plait.runtime.client.answer import Answer

from .learning_planner import RunOutcome, learn

log = logging.getLogger("plait.client")

_REMEMBERED = 10_000
"""Ended runs that may still get feedback."""


def outcome_of(request: Request, answer: Answer, task: Task) -> RunOutcome:
    """Return a run's feedback for its planner. A run without an answer counts as wrong."""
    right = 0.0 if answer.answer is None else None if answer.verified is None else float(answer.verified)
    return RunOutcome(
        planner=request.planner, text=request.text, seed=request.seed, right=right, tokens=answer.usage.completion,
        key=None if answer.answer is None else task.key(answer.answer), data=answer.data,
    )  # fmt: skip


@dataclass(slots=True)
class _PastRun:
    """A run that has ended."""

    path: str
    """The file that is written."""
    judged: bool
    told: tuple[Request, RunOutcome] | None
    """What is learned from, while it may still be; options that were learned are large."""
    counted: bool = False
    """Its planner has learned from it."""


class LearnedRuns:
    """Let planners learn from ended runs, and keep the last runs for later feedback of a caller.

    Files are locked, read and written in a thread, those of one path in the order in which the runs have ended. The
    next run that reads such a file waits for what has ended before (`settled`).
    """

    def __init__(self, made: Callable[[Plugin], Planner]) -> None:
        self._made = made
        self._ended: dict[str, _PastRun] = {}
        self._last: dict[str, asyncio.Task[bool]] = {}
        """By path: the last that is being written, or waits for the one before."""

    def follow(self, request: Request, task: Task, finished: asyncio.Future[Answer]) -> None:
        """Have a run's planner learn when the run has ended."""
        finished.add_done_callback(partial(self._take, request, task))

    def _take(self, request: Request, task: Task, finished: asyncio.Future[Answer]) -> None:
        """Take a run that has ended. A run that a person cancelled proves nothing about its planner."""
        if finished.cancelled() or finished.exception() is not None:
            return
        answer = finished.result()
        if answer.status == "cancelled":
            return
        outcome = outcome_of(request, answer, task)
        run = _PastRun(str(request.planner.options["path"]), outcome.right is not None, (request, outcome))
        self._count(run)
        self._ended[answer.run] = run
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def feedback(self, run: str, right: float) -> bool:
        """Say how good the answer of a run was that ended here, from 0 (wrong) to 1 (right), where its task cannot tell
        by itself. Its planner learns from it, if it has `learn`; return whether it did, once that is written.

        Raises `UsageError` for a run whose planner does not learn, that is judged already, or that is not among the
        last ten thousand.
        """
        if not 0.0 <= right <= 1.0:
            raise UsageError(f"an answer is from 0 (wrong) to 1 (right), not {right!r}")
        if (kept := self._ended.get(run)) is None:
            raise UsageError(f"no run {run!r} whose planner learns (`learn`, `path`) has ended here lately")
        if kept.judged:
            raise UsageError(f"run {run!r} is judged already: by its task, or by what was said before")
        kept.judged = True
        if kept.told is not None:
            request, outcome = kept.told
            kept.told = request, outcome.model_copy(update={"right": right})
        # The feedback is written even if its caller is cancelled.
        return await asyncio.shield(self._count(kept))

    async def counted(self, run: str) -> bool:
        """Whether a planner has learned from a run, once that is written."""
        if (kept := self._ended.get(run)) is None:
            return False
        await self.settled(kept.path)
        return kept.counted

    async def settled(self, path: JsonValue = None) -> None:
        """Wait until the feedback of ended runs is written: to one path, or to all."""
        if self._last and (writing := [task for name, task in self._last.items() if path in (None, name)]):
            await asyncio.wait(writing)

    def _count(self, run: _PastRun) -> asyncio.Task[bool]:
        path = run.path
        task = asyncio.ensure_future(self._in_turn(run, self._last.get(path)))
        self._last[path] = task

        def done(_: object) -> None:
            if self._last.get(path) is task:
                del self._last[path]

        task.add_done_callback(done)
        return task

    async def _in_turn(self, run: _PastRun, before: asyncio.Task[bool] | None) -> bool:
        """Have a planner learn from a run, after the one before; return whether it did."""
        if before is not None:
            await asyncio.wait([before])
        if (told := run.told) is None:  # it was learned from without a verdict, before one was given
            return False
        try:
            run.counted = await asyncio.to_thread(learn, *told, self._made)
        except PlaitError as error:  # the run itself went well
            log.warning("what a run teaches was not kept: %s", error)
        except Exception:  # a planner of others
            log.exception("a planner could not learn from a run")
        # Judged while it was learned from, it has something new to tell.
        if run.counted or (run.judged and run.told is told):
            run.told = None
        return run.counted
