"""Jobs on workers: each is begun, listened to, and ends in exactly one event."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from ...core.errors import RAISED, WorkerError
from ...core.events import Count, Counted, Event, Failed, Job, Progressed, Stopped, Succeeded
from ...core.interfaces import Progress, Worker, direct
from ...core.result import NO_USAGE, Failure, Result, as_failure
from . import checked
from .pace import Pace

log = logging.getLogger("plait.driver")

COUNTING = 30.0
"""Seconds that a worker has to count a prompt; then it is estimated."""


class JobTable:
    """The jobs under way.

    Args:
        workers: those that do them.
        post: takes each event.
        now: returns the time that events are stamped with.
    """

    def __init__(self, workers: Iterable[Worker], post: Callable[[Event], None], now: Callable[[], float]) -> None:
        self.workers = {worker.name: worker for worker in workers}
        self._direct = {name: found for name, each in self.workers.items() if (found := direct(each)) is not None}
        self._loop = asyncio.get_running_loop()
        self._post = post
        self._now = now
        self._doing: dict[int, asyncio.Task[None] | str] = {}
        """By attempt: the task that listens to the worker, or the name of the worker that calls back."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pace = Pace(self._loop)

    def __len__(self) -> int:
        return len(self._doing)

    def start(self, name: str, job: Job, context: contextvars.Context | None) -> None:
        """Start a job on a worker, which sees the variables of a context."""
        worker, attempt = self._direct.get(name), job.attempt
        if worker is None:
            work = self._work(self.workers[name], job)
            self._doing[attempt] = self._loop.create_task(work, context=context.copy() if context else None)
            return
        self._doing[attempt] = name
        try:
            if context is None:
                worker.begin(job, partial(self._told, name, attempt))
            else:
                context.run(worker.begin, job, partial(self._told, name, attempt))
        except RAISED as error:
            self._told(name, attempt, as_failure(error))

    def cancel(self, name: str, attempt: int) -> None:
        """Have a worker stop a job."""
        if self._pace.give_up(attempt):  # the worker has not heard of it yet
            return
        self.spawn(self._cancel(self.workers[name], attempt))

    def count(self, action: Count) -> None:
        """Have a worker count a prompt."""
        self.spawn(self._count(self.workers[action.worker], action))

    def abandon(self) -> None:
        """Hear of nothing more, and stop what can be stopped."""
        doing, self._doing = self._doing, {}
        for attempt, each in doing.items():
            if isinstance(each, str):
                self.cancel(each, attempt)
            else:
                each.cancel()
                self._tasks.add(each)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Do something beside the jobs, until `close`."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop listening, then free the workers."""
        tasks = [*self._tasks, *(each for each in self._doing.values() if not isinstance(each, str))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._doing.clear()
        await self.close_workers()

    async def close_workers(self) -> None:
        """Free the workers."""
        for worker in self.workers.values():
            with contextlib.suppress(Exception):
                await worker.close()

    async def _cancel(self, worker: Worker, attempt: int) -> None:
        try:
            await worker.cancel(attempt)
        except RAISED as error:  # the machine's timeout for this cancel covers it
            log.warning("%s could not cancel attempt %d: %s", worker.name, attempt, error)

    async def _count(self, worker: Worker, action: Count) -> None:
        """Count a prompt. A worker that fails, or takes too long, cannot tell."""
        tokens: object = None
        try:
            async with asyncio.timeout(COUNTING):
                tokens = await worker.count_tokens(action.op)
        except RAISED as error:
            reason = error or "no answer in time"
            log.warning("%s could not count the prompt of %s: %s", worker.name, action.step, reason)
        known = tokens if type(tokens) is int and 0 <= tokens < checked.MOST else None
        self._post(Counted(at=self._now(), step=action.step, tokens=known))

    # -- what workers say ----------------------------------------------------------------------------------------------

    def _told(self, name: str, attempt: int, item: Progress | Result | Failure) -> None:
        """Take what a worker tells of a job. What it tells after the end is not taken."""
        if attempt not in self._doing:
            return
        try:
            if isinstance(item, Progress):
                self._news(attempt, item)
                return
            end = checked.end(item, name)
        except RAISED as error:
            end = as_failure(error)
        self._ended(attempt, end)

    async def _work(self, worker: Worker, job: Job) -> None:
        """Run one job and post its news: any number of `Progressed`, then exactly one end."""
        attempt = job.attempt
        end: Result | Failure | None = None
        try:
            if not await self._pace.turn(attempt, job.run):
                self._ended(attempt, Result(value="", finish="cancelled"))
                return
            news = worker.run(job)
            try:
                async for item in news:
                    if not isinstance(item, Progress):
                        end = checked.end(item, worker.name)
                        break  # a second end, and news after it, are not taken
                    self._news(attempt, item)
            finally:
                if isinstance(news, AsyncGenerator):
                    await news.aclose()
        except BaseException as error:
            task = asyncio.current_task()
            ours = task is not None and task is self._doing.get(attempt) and not task.cancelling()
            if not ours or isinstance(error, KeyboardInterrupt):  # given up from outside, as `close` does
                self._doing.pop(attempt, None)
                raise
            raised = f"{worker.name} raised {type(error).__name__}, which is no way to end a job"
            end = as_failure(error if isinstance(error, Exception) else WorkerError(raised))
        if end is None:
            end = as_failure(WorkerError(f"{worker.name} ended this job without a result"))
        self._ended(attempt, end)

    def _news(self, attempt: int, said: Progress) -> None:
        news = checked.news(said)
        self._post(
            Progressed(
                self._now(),
                attempt,
                news.text,
                news.tokens,
                logprob=news.logprob,
                ids=news.ids,
                group=news.group,
                lowest=news.lowest,
            )
        )

    def _ended(self, attempt: int, end: Result | Failure) -> None:
        del self._doing[attempt]
        if isinstance(end, Failure):
            failure = end.model_copy(update={"usage": NO_USAGE})
            self._post(Failed(self._now(), attempt, failure, end.usage))
        elif end.finish == "cancelled":
            self._post(Stopped(self._now(), attempt, end))
        else:
            self._post(Succeeded(self._now(), attempt, end))
