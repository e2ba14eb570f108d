"""Start jobs on workers, post their reports as events, and end each job with exactly one event.

Reports of workers are validated here: values must be serializable, counts plausible. One value that JSON or UTF-8
cannot express would otherwise stop the journal, and with it every run.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import reprlib
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from time import thread_time
from typing import Any, cast, get_args

from pydantic import ValidationError

from ...core.errors import RAISED, WorkerError
from ...core.events import Count, Counted, Event, Failed, Job, Stopped, Succeeded
from ...core.interfaces import CacheUpdate, DirectWorker, Progress, Worker, direct
from ...core.result import (
    NO_SOURCES,
    NO_USAGE,
    NOTHING,
    Failure,
    Finish,
    Result,
    Signals,
    Source,
    Sources,
    Token,
    TokenDraws,
    Usage,
    as_failure,
)
from ...core.values import json_value, writable
from ..journal.text_deltas import merge_deltas

log = logging.getLogger("plait.driver")

MAX_JOBS_PER_TURN = 8
"""Maximum number of jobs that begin in one turn of the event loop: hundreds at once would delay all earlier work."""
SHORT_TURN_S = 0.00025
"""Seconds. After a turn of at most this length, twice as many jobs begin: cheap jobs need few turns."""
BUSY_TURN_S = 0.0005
"""Seconds. A turn of at least this length begins no job: the loop has other work to finish first."""
MAX_BUSY_TURNS = 8
"""Maximum number of busy turns in a row that begin no job. A loop that is always busy begins jobs too."""

TEXT_INTERVAL_S = 0.02
"""Minimum seconds between two events with text of an attempt, where nothing but a follower reads it."""
COUNT_TIMEOUT_S = 30.0
"""Timeout in seconds for counting a prompt; after it the size is estimated."""
CLOSE_TIMEOUT_S = 60.0
"""Timeout in seconds for closing a worker."""

_FINISHES = get_args(Finish)
_NAMED = (None, *get_args(Source))
_BY_WORKER = Sources.all("server")
_TEXTS = ("why", "reasoning", "anew", "prior")

MAX_COUNT = 1 << 40
"""More tokens than any attempt has. A larger count is an error of the worker that reported it."""


class Pace:
    """Starts jobs in turns: one share after another, in a share one run after another, in a run in their order.

    A busy turn of the loop begins no job, so that turns stay short for all other work. This delays no job while the
    loop waits: its turns are then short. `clock`: CPU seconds of this thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = thread_time) -> None:
        self._loop, self._clock = loop, clock
        self._few = self._left = 1
        self._armed = False
        self._looked = 0.0
        self._passed = 0
        self._shares: OrderedDict[str, OrderedDict[str, deque[int]]] = OrderedDict()
        self._waiting: dict[int, Callable[[], object]] = {}

    def enter(self, attempt: int, share: str, run: str, begin: Callable[[], object]) -> None:
        """Begin a job now, or at its turn."""
        if not self._armed:
            self._arm()
        if self._left and not self._shares:
            self._left -= 1
            begin()
            return
        self._waiting[attempt] = begin
        self._shares.setdefault(share, OrderedDict()).setdefault(run, deque()).append(attempt)

    def give_up(self, attempt: int) -> bool:
        """Cancel a job that has not begun; return whether there was one."""
        return self._waiting.pop(attempt, None) is not None

    def close(self) -> None:
        """Begin no more jobs."""
        self._waiting.clear()

    def _arm(self) -> None:
        self._armed = True
        self._looked = self._clock()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        # Work in this thread since the turn began, measured as CPU time: waiting does not count.
        self._armed, worked = False, self._clock() - self._looked
        self._few = (
            1
            if worked > BUSY_TURN_S
            else min(2 * self._few, MAX_JOBS_PER_TURN)
            if worked <= SHORT_TURN_S
            else self._few
        )
        self._left = self._few
        if self._shares and worked > BUSY_TURN_S and self._passed < MAX_BUSY_TURNS:
            self._passed, self._left = self._passed + 1, 0
        else:
            self._passed = 0
        while self._shares and self._left:
            share, runs = self._shares.popitem(last=False)
            run, queue = runs.popitem(last=False)
            begin = self._waiting.pop(queue.popleft(), None)
            if queue:
                runs[run] = queue  # behind the other runs of its share
            if runs:
                self._shares[share] = runs  # and the share behind the other shares
            if begin is not None:
                self._left -= 1
                begin()
        if self._shares:
            self._arm()


class JobTable:
    """The active jobs.

    Args:
        workers: the workers that run them.
        post: called with each event.
        now: returns the time for events.
        may_wait: returns whether an attempt's text may be posted `TEXT_INTERVAL_S` later.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        post: Callable[[Event], None],
        now: Callable[[], float],
        may_wait: Callable[[int], bool] = lambda attempt: False,
    ) -> None:
        self.workers: dict[str, Worker] = {worker.name: worker for worker in workers}
        self._direct = {name: way for name, worker in self.workers.items() if (way := direct(worker)) is not None}
        self._loop = asyncio.get_running_loop()
        self._post = post
        self._now = now
        self._may_wait = may_wait
        self._texts: dict[int, list[Progress]] = {}
        """By attempt: text that waits to be posted as one event, since there was an event of it a moment ago."""
        self._timer: asyncio.TimerHandle | None = None
        self._doing: dict[int, asyncio.Task[None] | str] = {}
        """By attempt: the task that reads the worker's reports, or the name of a worker that calls back or has not
        begun."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._pace = Pace(self._loop)

    def __len__(self) -> int:
        return len(self._doing)

    def start(self, name: str, job: Job, context: contextvars.Context | None, share: str) -> None:
        """Start a job on a worker, in a copy of a context. Shares with many jobs to start take turns."""
        worker, attempt = self._direct.get(name), job.attempt
        self._doing[attempt] = name
        if worker is not None and job.op.kind == "call":
            self._begin_direct(worker, job, context)
            return
        begin = partial(self._begin, name, job, context)
        if worker is not None:
            begin = partial(self._begin_direct, worker, job, context)
        # A model call begins with slow work: it renders a prompt and makes a request.
        self._pace.enter(attempt, share, job.run, begin)

    def _begin(self, name: str, job: Job, context: contextvars.Context | None) -> None:
        work = self._work(self.workers[name], job)
        self._doing[job.attempt] = self._loop.create_task(work, context=context.copy() if context else None)

    def _begin_direct(self, worker: DirectWorker, job: Job, context: contextvars.Context | None) -> None:
        report = partial(self._receive, worker.name, job.attempt)
        try:
            if context is None:
                worker.begin(job, report)
            else:
                context.run(worker.begin, job, report)
        except RAISED as error:
            report(as_failure(error))

    def cancel(self, name: str, attempt: int) -> None:
        """Stop a job on its worker."""
        if self._pace.give_up(attempt):  # the worker has not received it yet
            # Later and not now: the caller is handling an event, and its end must be an event of its own.
            self._loop.call_soon(self._receive, name, attempt, Result(value="", finish="cancelled"))
            return
        self.spawn(self._cancel(self.workers[name], attempt))

    def count(self, action: Count) -> None:
        """Count a prompt on a worker."""
        self.spawn(self._count(self.workers[action.worker], action))

    def abandon(self) -> None:
        """Drop all further reports, and stop the jobs."""
        doing, self._doing, self._texts = self._doing, {}, {}
        for attempt, job in doing.items():
            if isinstance(job, str):
                self.cancel(job, attempt)
            else:
                job.cancel()
                self._tasks.add(job)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the jobs, until `close`."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)  # the loop itself keeps only weak references to tasks
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop all tasks, then close the workers."""
        self._pace.close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks, *(job for job in self._doing.values() if not isinstance(job, str))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._doing.clear()
        await self.close_workers()

    async def close_workers(self) -> None:
        """Close the workers. Errors are logged: one worker must not keep the others open."""
        for worker in self.workers.values():
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await worker.close()
            except Exception as error:
                log.warning(
                    "%s could not be closed: %s", worker.name, str(error) or f"no answer for {CLOSE_TIMEOUT_S:g} s"
                )

    async def _cancel(self, worker: Worker, attempt: int) -> None:
        try:
            await worker.cancel(attempt)
        except RAISED as error:  # the machine's timeout for this cancel covers it
            log.warning("%s could not cancel attempt %d: %s", worker.name, attempt, error)

    async def _count(self, worker: Worker, action: Count) -> None:
        """Count a prompt; on an error or a timeout the count is unknown."""
        tokens: object = None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                tokens = await worker.count_tokens(action.op)
        except RAISED as error:
            reason = str(error) or "no answer in time"
            log.warning("%s could not count the prompt of %s: %s", worker.name, action.step, reason)
        known = tokens if type(tokens) is int and 0 <= tokens < MAX_COUNT else None
        self._post(Counted(at=self._now(), step=action.step, tokens=known))

    # -- reports of workers --------------------------------------------------------------------------------------------

    def _receive(self, name: str, attempt: int, item: Progress | Result | Failure) -> None:
        """Post a worker's report on a job as an event. Reports after the end are dropped."""
        if attempt not in self._doing:
            return
        try:
            if isinstance(item, Progress):
                self._news(attempt, item)
                return
            end = item if item is NOTHING else sound_end(item, name)  # all calls without a value share it
        except RAISED as error:
            end = as_failure(error)
        self._ended(attempt, end)

    async def _work(self, worker: Worker, job: Job) -> None:
        """Run one job and post its reports: any number of `Progressed`, then exactly one end."""
        attempt = job.attempt
        end: Result | Failure | None = None
        try:
            news = worker.run(job)
            try:
                async for item in news:
                    if not isinstance(item, Progress):
                        end = sound_end(item, worker.name)
                        break  # reports after the end are dropped
                    self._news(attempt, item)
            finally:
                # Closed here, so that the worker's own clean-up runs now and not when the generator is collected.
                if isinstance(news, AsyncGenerator):
                    await news.aclose()
        except BaseException as error:
            task = asyncio.current_task()
            ours = task is not None and task is self._doing.get(attempt) and not task.cancelling()
            if not ours or isinstance(error, KeyboardInterrupt):  # cancelled from outside, as `close` does
                self._doing.pop(attempt, None)
                raise
            raised = f"{worker.name} raised {type(error).__name__}, which is no way to end a job"
            end = as_failure(error if isinstance(error, Exception) else WorkerError(raised))
        if end is None:
            end = as_failure(WorkerError(f"{worker.name} ended this job without a result"))
        self._ended(attempt, end)

    def _news(self, attempt: int, item: Progress) -> None:
        """Post a report: the first at once, the text of later ones together every `TEXT_INTERVAL_S`."""
        # Most reports are a text and a number of tokens, and have nothing else to look at.
        is_plain = item.text.__class__ is str and item.tokens.__class__ is int and 0 <= item.tokens < MAX_COUNT
        if not (
            is_plain and item.reasoning == "" and item.ids == () and item.logprob is item.group is item.lowest is None
        ):
            item = sound_news(item)
        waiting = self._texts.get(attempt)
        if waiting is None:
            self._post_progress(attempt, (item,))
            if item.logprob is None and self._may_wait(attempt):
                self._texts[attempt] = []
                self._timer = self._timer or self._loop.call_later(TEXT_INTERVAL_S, self._post_texts)
        elif item.logprob is None and (not waiting or bool(waiting[-1].ids) == bool(item.ids)):
            waiting.append(item)
        else:
            del self._texts[attempt]
            if waiting:
                self._post_progress(attempt, waiting)
            self._news(attempt, item)

    def _post_texts(self) -> None:
        texts, self._texts, self._timer = self._texts, {}, None
        for attempt, waiting in texts.items():
            if waiting and attempt in self._doing:
                self._post_progress(attempt, waiting)
                self._texts[attempt] = []
        if self._texts:
            self._timer = self._loop.call_later(TEXT_INTERVAL_S, self._post_texts)

    def _post_progress(self, attempt: int, items: Sequence[Progress]) -> None:
        event = merge_deltas(self._now(), attempt, items)
        event.text = writable(event.text)
        self._post(event)

    def _ended(self, attempt: int, end: Result | Failure) -> None:
        if waiting := self._texts.pop(attempt, None):
            self._post_progress(attempt, waiting)
        del self._doing[attempt]
        if isinstance(end, Failure):
            failure = end.model_copy(update={"usage": NO_USAGE})
            self._post(Failed(self._now(), attempt, failure, end.usage))
        elif end.finish == "cancelled":
            self._post(Stopped(self._now(), attempt, end))
        else:
            self._post(Succeeded(self._now(), attempt, end))


def sound_news(item: Progress) -> Progress:
    """Return a worker's progress report with a serializable text, and with plausible counts and ids."""
    text = writable(item.text) if isinstance(item.text, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    tokens = item.tokens if type(item.tokens) is int and 0 <= item.tokens < MAX_COUNT else 0
    ids = item.ids if _are_ids(item.ids) else ()
    numbers = {name: None for name in ("logprob", "group", "lowest") if not _is_number(getattr(item, name))}
    reasoning = writable(item.reasoning)
    if text is item.text and tokens is item.tokens and ids is item.ids and reasoning is item.reasoning and not numbers:
        return item
    return replace(item, text=text, tokens=tokens, ids=ids, reasoning=reasoning, **numbers)


def sound_cache(news: CacheUpdate) -> CacheUpdate:
    """Return a worker's cache report without implausible entries."""
    held = tuple(
        pair
        for pair in news.held
        if isinstance(pair, tuple)  # pyright: ignore[reportUnnecessaryIsInstance]
        and len(pair) == 2
        and all(type(number) is int and 0 <= number < MAX_COUNT for number in pair)
    )
    return news if held == news.held else CacheUpdate(held, bool(news.cleared))


def sound_end(item: Result | Failure, worker: str) -> Result | Failure:
    """Return the end of a job in a serializable form. A result with other values, or with fields of wrong types,
    becomes a failure."""
    usage = _sane(item.usage) if isinstance(item.usage, Usage) else Usage()  # pyright: ignore[reportUnnecessaryIsInstance]
    changed: dict[str, object] = {} if usage is item.usage else {"usage": usage}
    if isinstance(item, Failure):
        for name in ("kind", "message", "frames"):
            given = getattr(item, name)
            made = writable(given) if isinstance(given, str) else f"no text: {reprlib.repr(given)}"
            changed |= {} if made is given else {name: made}
        return item.model_copy(update=changed) if changed else item
    texts = () if item.why == item.reasoning == item.anew == item.prior == "" else _TEXTS  # mostly none
    try:
        made = json_value(item.value)
        wrong = _wrong_field(item, texts)
    except ValueError as error:
        wrong, made = f"a value that cannot be serialized: {error}", None
    if wrong:
        return Failure(kind="WorkerError", message=f"{worker} returned {wrong}", usage=usage)
    if made is not item.value:
        changed["value"] = made
    for name in texts:
        given = getattr(item, name)
        if not given.isascii():
            changed[name] = writable(given)
    return item.model_copy(update=changed) if changed else item


def _wrong_field(item: Result, texts: Sequence[str]) -> str:
    """Return a description of the first wrong field of a result, or an empty text. `texts`: its texts beside the value,
    as far as they are not known to be empty."""
    # Workers may build results without validation (`model_construct`), so that nothing is certain of their fields.
    for ids in (item.prompt_ids, item.token_ids):
        if (ids.__class__ is not tuple or ids) and not _are_ids(ids):
            return "token ids that are not a tuple of integers"
    if item.finish not in _FINISHES:
        return f"finish={reprlib.repr(item.finish)}, which is not one of {', '.join(_FINISHES)}"
    if item.logprob is not None and not _is_number(item.logprob):
        return "a `logprob` that is not a number"
    for name in texts:
        if not isinstance(getattr(item, name), str):
            return f"a `{name}` that is not a text"
    if not (item.partial is False or item.partial is True) or item.extracted is not False:
        return "`partial` or `extracted`, which workers must not set"
    if item.patch is not None:
        return "a plan, which workers must not return"
    return _wrong_statistics(item)


def _wrong_statistics(item: Result) -> str:
    if item.signals is not None:
        try:
            Signals.model_validate(item.signals.__dict__)
        except (ValidationError, AttributeError):
            return "signals that are not numbers"
    try:
        if item.tokens and any(writable(token.text) is not token.text for token in map(_token, item.tokens)):
            raise TypeError
    except (ValidationError, AttributeError, TypeError):
        return "tokens without a text and a log-probability"
    return _wrong_labels(item) if item.labels or item.drawn is not None else ""


def _token(given: Token) -> Token:
    Token.model_validate(given.__dict__)
    return given


def _wrong_labels(item: Result) -> str:
    """Return a description of the first wrong value in `labels` or `drawn` of a result, or an empty text."""
    labels, drawn = cast("tuple[object, object]", (item.labels, item.drawn))
    if not isinstance(labels, dict):
        return "labels that are not a dictionary"
    for label, logprob in cast("dict[object, object]", labels).items():
        known = isinstance(label, str) and writable(label) is label
        if not known or type(logprob) not in (int, float) or math.isnan(cast("float", logprob)):
            return f"the label {reprlib.repr(label)} with {reprlib.repr(logprob)}, which is not a log-probability"
    try:
        if drawn is not None and not isinstance(drawn, TokenDraws):
            raise TypeError
        TokenDraws.model_validate({} if drawn is None else drawn.__dict__)
    except (ValidationError, TypeError):
        return "a `drawn` that is not a TokenDraws"
    return ""


def _are_ids(given: object) -> bool:
    if not isinstance(given, tuple):
        return False
    ids = cast("tuple[int, ...]", given)
    return not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < MAX_COUNT)


def _is_number(given: object) -> bool:
    return given is None or (type(given) in (int, float) and math.isfinite(cast("float", given)))


def _sane(usage: Usage) -> Usage:
    """Return a usage without implausible counts; the same object if all are plausible."""
    if usage is NO_USAGE:
        return usage
    changed: dict[str, object] = {
        name: 0
        for name, count in usage.__dict__.items()
        if name != "sources" and (type(count) not in (int, float) or not 0 <= count < MAX_COUNT)  # false for NaN too
    }
    if (sources := _sources(usage)) is not usage.sources:
        changed["sources"] = sources
    return usage.model_copy(update=changed) if changed else usage


def _sources(usage: Usage) -> Sources:
    """Return the sources of an attempt's counts; a worker that names none is the source itself."""
    given = usage.sources
    # An invalid value is treated as missing: a wrong source must not fail a result that is otherwise sound.
    if given is not NO_SOURCES:
        is_one = isinstance(given, Sources)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_one or not all(map(_NAMED.__contains__, given.__dict__.values())):
            given = NO_SOURCES
    counted = usage.prompt or usage.completion or usage.cost
    if not counted or (given.prompt and given.completion and (given.cost or not usage.cost)):
        return given
    if given is NO_SOURCES and not usage.cost:
        return _BY_WORKER
    named = {name: source for name, source in given.__dict__.items() if source is not None}
    return _BY_WORKER.model_copy(update={"cost": "server" if usage.cost else None, **named})
