"""The only asyncio loop: one inbox, the real clock, a task per job.

Events go from the inbox to the journal, then to the machine; its actions go to workers and planners' readers. One
process has one driver, whatever number of runs and journals.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from ...core.causes import Cause
from ...core.errors import RAISED, ConfigError, UsageError, WorkerError, WorkerLost
from ...core.events import (
    Action,
    CacheChanged,
    Cancel,
    Cancelled,
    Count,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    Submitted,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from ...core.interfaces import CacheUpdate, Worker, cache_news, offer
from ...core.ops import Kind
from ...core.result import as_failure
from ...machine import Machine, Run
from ..journal.writer import Recorder
from .admission import Admission
from .autoscaler import Elastic
from .event_pump import IDLE, Adoption, Pump, WaitForThread, Watcher, Watchers
from .expander import Expander
from .garbage_collection import Collector
from .jobs import JobTable, sound_cache
from .routing_hints import Hinter

log = logging.getLogger("plait.driver")

Ended = tuple[Finish, Run | None]
"""The end of a run, and its records (`None` if it was rejected at once)."""

WRITE_DELAY_S = 0.02
"""Maximum time that events wait to be written together."""
CACHE_REPORT_INTERVAL_S = 0.1
"""Minimum time between two reports on a worker's prefix cache."""
MODEL_SILENCE_LIMIT_S = 900.0
"""Seconds without a report on a model step after which its attempt counts as lost."""
CALL_SILENCE_LIMIT_S = 86_400.0
"""The same for a tool call: some take hours, and report nothing until they have ended."""


class SpanSource(Protocol):
    """The spans of attempts that are about to be sent out."""

    def traceparent(self, attempt: int) -> str:
        """Return the span for `Job.trace`; empty without one."""
        ...

    def enter(self, attempt: int, context: contextvars.Context | None) -> contextvars.Context | None:
        """Return a run's context with the attempt's span in it, for what its worker traces."""
        ...


class Driver:
    """Runs a machine on the running event loop, with the given workers.

    `recorder` writes events; without one nothing is written. `collector`: whether Python's garbage collector runs less
    often while runs are active (`garbage_collection.py`).
    """

    def __init__(
        self,
        machine: Machine,
        workers: Iterable[Worker],
        expander: Expander,
        recorder: Recorder | None = None,
        *,
        collector: bool = True,
    ) -> None:
        self.machine = machine
        self.expander = expander
        self.recorder: Recorder = recorder or Recorder(machine)
        self.recorder.failed = self._give_up
        self._audience = Watchers(machine, self._give_up)
        self._streamed: set[str] = set()
        """Runs whose model calls all stream."""
        self._loop = asyncio.get_running_loop()
        self.jobs: JobTable = JobTable(workers, self._receive, self.now, self._may_wait)
        self._collector = Collector(self._loop, collector)
        self.admission: Admission = Admission()
        """Limits the number of waiting runs, if it has a limit."""
        self.elastic: Elastic | None = None
        """Autoscaling of workers. Must be set before the start."""
        self._pump = Pump(
            machine,
            self.recorder,
            expander,
            self._audience,
            self._collector,
            perform=self._perform,
            write=self._write_at_once,
            now=self.now,
        )
        self.return_wait_s: float | None = None
        """Seconds for which steps wait for a worker that went away; then they fail. `None`: for as long as they may
        last."""
        self._idle = True
        """No event is being handled, and no call of `_pump_events` is scheduled."""
        self._context = contextvars.copy_context()
        """Context of work that belongs to no run."""
        self._contexts: dict[str, contextvars.Context] = {}
        """Contexts of runs: those of their submitters, which tools see."""
        self._waiting: dict[str, asyncio.Future[Ended]] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None
        self._closed = False
        self._over: list[tuple[asyncio.Future[Ended], Ended]] = []
        """Futures of ended runs, to resolve when their ends are written."""
        self.traced: SpanSource | None = None
        self._hinter = Hinter()
        """Steps of attempts that were sent out with hints."""
        self._sizes: dict[str, int] = {}
        """Slots of workers that are limited below their offer."""
        self._lost: deque[tuple[str, Exception]] = deque()
        """Runs to end because of an error outside the machine."""

    @property
    def watchers(self) -> list[Watcher]:
        """Watchers of every event; append to it."""
        return self._audience.general

    def now(self) -> float:
        """Return the time in seconds, on the event loop's monotonic clock."""
        return self._loop.time()

    @property
    def workers(self) -> list[Worker]:
        """All workers, in the order in which they were given."""
        return list(self.jobs.workers.values())

    # -- the outside -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all workers concurrently, except autoscaled ones; on an error close them all and raise the first
        `WorkerError`."""
        asleep = self.elastic.asleep if self.elastic is not None else ()
        now = [worker for worker in self.jobs.workers.values() if worker not in asleep]
        starts = [asyncio.ensure_future(worker.start()) for worker in now]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.jobs.close_workers()
            raise
        for worker in now:
            self.join(worker)
        if self.elastic is not None:
            self.jobs.spawn(self.elastic.run())

    def join(self, worker: Worker) -> None:
        """Add a worker that has started, for the first time or again."""
        self._up(worker)
        self.jobs.spawn(self._follow(worker))
        if (news := cache_news(worker)) is not None:
            self.jobs.spawn(self._follow_cache(worker.name, news))

    def admit(self) -> None:
        """Raise `Overloaded` if the number of waiting runs has reached its limit."""
        # Submitted runs may still be in the inbox, where the machine does not count them.
        coming = max(0, len(self._waiting) - len(self.machine.runs))
        if self.admission.most is not None:
            self.admission.check(self.machine, self.now(), coming)

    def submit(self, event: Submitted, known: bool = True) -> asyncio.Future[Ended]:
        """Submit a run and return the future of its end. `known`: its caller has its id and may look for it in another
        process; the start of any other run is written within `WRITE_DELAY_S`."""
        future = self._expect(event.run)
        self.recorder.at_once = self.recorder.at_once or known
        self.post(event)
        return future

    def adopt(self, machine: Machine, run: str) -> tuple[float, asyncio.Future[Ended]]:
        """Take over a run of another machine that has no attempt left. Return the time of this driver's clock that
        corresponds to the other machine's present, and the future of the run's end."""
        future, at = self._expect(run), self.now()
        self.post(Adoption(machine, run, at))
        return at, future

    def _expect(self, run: str) -> asyncio.Future[Ended]:
        if self._broken is not None:
            raise WorkerError(f"the driver broke down: {self._broken}") from self._broken
        if self._closed:
            raise UsageError("this orchestrator was closed; make a new one")
        self._waiting[run] = future = self._loop.create_future()
        # Tools of the run see the context variables of the caller that submitted it, not those of the loop.
        self._contexts[run] = contextvars.copy_context()
        self._collector.began(run)
        return future

    def reported(self, run: str, records: Run | None) -> None:
        """Free the records of a run that are no longer read. May be called on a thread."""
        # They refer to one another, so otherwise only the garbage collector would free them.
        if records is not None:
            records.dissolve()
        self._collector.reported(run)

    def ended(self, run: str) -> None:
        """Free a run whose answer is complete."""
        self._collector.ended(run)

    def watch(self, run: str, watcher: Watcher) -> None:
        """Add a watcher of the events of one run, until the run has ended."""
        self._audience.add(run, watcher)

    def stream(self, run: str) -> None:
        """Make every model call of a run stream its text, even against its plan, until the run has ended."""
        self._streamed.add(run)

    def unwatch(self, run: str, watcher: Watcher) -> None:
        """Remove a watcher of a run."""
        self._audience.remove(run, watcher)

    def cancel(self, run: str, reason: str = "", cause: Cause = "user") -> None:
        """Cancel a run. Its future still resolves, with the partial results."""
        self.post(Cancelled(at=self.now(), run=run, reason=reason, cause=cause))

    def resize(self, worker: str, slots: int | None = None) -> int:
        """Limit a worker to `slots` slots, and return the number in use. 0 starts no step there; running attempts
        continue. Raises `UsageError`."""
        there = self.jobs.workers.get(worker)
        if there is None:
            raise UsageError(f"there is no worker {worker!r} (workers: {', '.join(self.jobs.workers)})")
        most = offer(there).slots
        if slots is not None:
            if not 0 <= slots <= most:
                raise UsageError(f"{worker} was started with {most} slots: choose 0 to {most}")
            self._sizes[worker] = slots
            if worker in self.machine.workers and self.machine.workers[worker].up:
                self._up(there)
        return self._sizes.get(worker, most)

    async def close(self) -> None:
        """Cancel running work, then free workers and journals. May be called twice."""
        self._closed = True
        for run in list(self._waiting):
            self.cancel(run, cause="closed")
        if self._waiting:
            await asyncio.wait(list(self._waiting.values()), timeout=15)
        for timer in (self._wake, self._flush):
            if timer is not None:
                timer.cancel()
        await self.jobs.close()
        self._collector.close()
        self.recorder.close()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def post(self, event: Event | Adoption) -> None:
        """Queue an event."""
        if self._broken is not None:
            return
        self._pump.inbox.append(event)
        self._awake()

    def _receive(self, event: Event) -> None:
        """Queue a worker's event, and handle it at once if no other event is being handled."""
        if self._broken is not None:
            return
        self._pump.inbox.append(event)
        if self._idle:
            self._idle = False
            # In a context of the driver's own: a worker calls this in the context of one run, which must not leak into
            # timers and threads that this event starts for others.
            self._context.run(self._pump_events)

    def _awake(self) -> None:
        if self._pump.inbox and self._idle:
            self._idle = False
            self._loop.call_soon(self._pump_events)

    def _pump_events(self, _: object = None) -> None:
        """Handle events until the inbox is empty, the slice is used up, or a thread handles one."""
        try:
            stopped = self._pump.step()
            if stopped is IDLE:
                if self._over or self._lost or self.recorder.at_once:
                    self._write_at_once()
                # No caller waits for the other events, so they are written together a little later.
                if self._flush is None and self.recorder.files and not self._over:
                    self._flush = self._loop.call_later(WRITE_DELAY_S, self._write)
        except Exception as error:
            self._idle = True
            self._break_down(error)
            return
        if stopped is IDLE:
            self._idle = True
            if self._pump.inbox:
                self._awake()  # writing may have ended runs whose journal is lost, and their cancellations wait
        elif isinstance(stopped, WaitForThread):
            stopped.handled.add_done_callback(self._pump_events)
        else:
            self._loop.call_soon(self._pump_events)

    def _write_at_once(self) -> None:
        """Write the starts of runs before a follower gets an event of them; without a journal resolve futures."""
        if self.recorder.at_once or not self.recorder.files:
            self._write_urgent()

    def _write_ends(self) -> None:
        try:
            self._write_urgent()
        except Exception as error:
            self._break_down(error)

    def _write_urgent(self) -> None:
        """Write starts and ends of runs, then resolve the futures of ended runs."""
        # In this order: a caller must not get an answer whose end a crash could lose.
        if self.recorder.urgent:
            self.recorder.flush()
        if self._lost:
            self._end_lost()
        over, self._over = self._over, []
        for future, ended in over:
            if not future.done():
                future.set_result(ended)

    def _write(self) -> None:
        self._flush = None
        self.recorder.flush()

    def _break_down(self, error: Exception) -> None:
        """Fail all runs after the machine raised: its state can no longer be trusted."""
        self._broken = error
        for future in [*self._waiting.values(), *(future for future, _ in self._over)]:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        self._pump.inbox.clear()
        self.jobs.abandon()
        log.error("the driver broke down", exc_info=error)

    def _give_up(self, runs: Sequence[str], error: Exception) -> None:
        """End runs because of an error outside the machine: their callers get the error."""
        # May be called on a thread or while an event is handled, so the ends are queued for the loop.
        self._lost.extend((run, error) for run in runs)
        self._loop.call_soon_threadsafe(self._end_lost)

    def _end_lost(self) -> None:
        while self._lost:
            run, error = self._lost.popleft()
            waiting = [future for future, (finish, _) in self._over if finish.run == run]
            future = self._waiting.pop(run, None)
            for waiter in [*waiting, *([future] if future is not None else [])]:
                if not waiter.done():
                    waiter.set_exception(error)
            self._audience.of.pop(run, None)
            self.cancel(run, f"{type(error).__name__}: {error}", "broken")

    # -- actions -----------------------------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatch(action)
            case Expand():
                slow_part = self.expander.slow_part(action, self.machine)
                if slow_part is None:
                    self._pump.inbox.extend(self.expander.expand(action, self.machine, self.now()))
                else:
                    looked = self._loop.run_in_executor(None, slow_part)
                    looked.add_done_callback(partial(self._expand, action))
            case Cancel():
                if action.attempt is not None and action.worker is not None:
                    self.jobs.cancel(action.worker, action.attempt)
            case Count():
                self.jobs.count(action)
            case WakeAt():
                if self._wake is not None:
                    self._wake.cancel()
                self._wake = self._loop.call_at(action.at, self._tick)
            case Finish():
                if self.admission.most is not None:
                    self.admission.record_end(self.now())
                self.expander.forget(action.run)
                self.recorder.lost.discard(action.run)
                self._contexts.pop(action.run, None)
                self._audience.of.pop(action.run, None)
                self._streamed.discard(action.run)
                self._hinter.runs.pop(action.run, None)
                future = self._waiting.pop(action.run, None)
                if future is not None:
                    if not self._over and self.recorder.files:
                        # A worker reports the ends of one step one by one: all of this turn are written together.
                        self._loop.call_soon(self._write_ends)
                    self._over.append((future, (action, self.machine.find_finished(action.run))))
            case _:
                assert_never(action)

    def _dispatch(self, action: Dispatch) -> None:
        job = action.job
        node = self.machine.nodes.get(job.step)
        if node is not None and node.step.side_effects and not self.recorder.intent(job):
            # Without the note a resumed run could not know that the call may have had effects.
            error = ConfigError("the call was not made: the journal could not be written before it")
            self._pump.inbox.append(Failed(at=self.now(), attempt=job.attempt, failure=as_failure(error)))
            return
        if job.run in self._streamed and job.op.kind == "think" and not job.op.stream:
            job = replace(job, op=job.op.model_copy(update={"stream": True}))
        # Ends of attempts name no run, so the pump looks it up here for watchers.
        self._pump.runs[job.attempt] = job.run
        if getattr(self.jobs.workers.get(action.worker), "hints", False):
            job = replace(job, hints=self._hinter.hints(job, self.machine))
        context = self._contexts.get(job.run)
        if self.traced is not None and (trace := self.traced.traceparent(job.attempt)):
            job, context = replace(job, trace=trace), self.traced.enter(job.attempt, context)
        if self.recorder.urgent and job.op.kind == "call":
            self._write_urgent()  # the call may be made at once, and end this process
        share = (node.run.request.fairness_group if node is not None else None) or job.run
        self.jobs.start(action.worker, job, context, share)

    def _expand(self, action: Expand, looked: asyncio.Future[object]) -> None:
        """Continue an expansion after its slow part has run on a thread."""
        # Its error is only marked as read: `expand` raises it again, and it then fails the step.
        if not looked.cancelled():
            looked.exception()
        if self._broken is None:
            self._pump.inbox.extend(self.expander.expand(action, self.machine, self.now()))
            self._awake()

    def _tick(self) -> None:
        self._wake = None
        self.post(Tick(at=self.now()))

    def _may_wait(self, attempt: int) -> bool:
        """Return whether only followers read an attempt's text while it is written."""
        live = self.machine.attempts.get(attempt)
        return live is not None and not self.machine.is_reviewed(attempt) and not live.node.step.feeds_reader

    # -- workers -----------------------------------------------------------------------------------------------------

    async def _follow(self, worker: Worker) -> None:
        """Report a worker's health until the worker is closed or lost."""
        up, patience = True, None
        try:
            async for healthy in worker.health():
                if healthy != up and patience is not None:
                    patience.cancel()
                if healthy and not up:
                    self._up(worker)
                elif up and not healthy:
                    self.post(self._departure(worker, returning=True))
                    if self.return_wait_s is not None:
                        patience = self._loop.call_later(self.return_wait_s, self._give_up_waiting, worker)
                up = healthy
        except RAISED as error:
            log.warning("%s lost: %s", worker.name, error)
        finally:
            if patience is not None:
                patience.cancel()
        self.post(self._departure(worker))

    def _give_up_waiting(self, worker: Worker) -> None:
        """Fail the steps that wait for a worker; the worker is used again when it comes back."""
        if not self._closed:
            self.post(self._departure(worker))

    def _departure(self, worker: Worker, returning: bool = False) -> WorkerDown:
        """Return the event of a worker that went away, with the cause that it reports."""
        reason = getattr(worker, "lost", "")  # a user's worker may not have it
        return WorkerDown(at=self.now(), worker=worker.name, returning=returning, reason=str(reason)[:2_000])

    async def _follow_cache(self, worker: str, news: AsyncIterator[CacheUpdate]) -> None:
        """Post a worker's reports on its prefix cache, at most every `CACHE_REPORT_INTERVAL_S`."""
        try:
            async for change in news:
                self.post(CacheChanged(self.now(), worker, sound_cache(change)))
                await asyncio.sleep(CACHE_REPORT_INTERVAL_S)
        except RAISED as error:
            log.warning("%s stopped reporting on its cache: %s", worker, error)

    def _up(self, worker: Worker) -> None:
        self.post(replace(arrival(worker, self.now()), slots=self.resize(worker.name)))


def arrival(worker: Worker, at: float) -> WorkerUp:
    """Return the event with a worker's offer."""
    slots, serves, models, cache_tokens, block, _, reports, counts, prices = offer(worker)
    return WorkerUp(at, worker.name, slots, serves, models, cache_tokens, block, reports, counts, dict(prices))


async def watch_silence(driver: Driver, model_limit_s: float, call_limit_s: float) -> None:
    """End attempts that have reported nothing for longer than their limit, until cancelled.

    A worker may forget a job and yet be healthy otherwise. The end is an event like any other, so a replay needs no
    clock.
    """
    while True:
        await asyncio.sleep(min(model_limit_s, call_limit_s) / 10)
        now = driver.now()
        for attempt in list(driver.machine.attempts.values()):
            name = attempt.worker.name
            worker = driver.jobs.workers.get(name)
            limit = _silence_limit(worker, attempt.node.step.op.kind, model_limit_s, call_limit_s)
            if limit is None or attempt.state != "live" or now - attempt.heartbeat < limit:
                continue
            message = (
                f"worker {name} has reported nothing about this step for {limit:g} s; if that is normal there, raise "
                "`lease`"
            )
            driver.post(Failed(at=now, attempt=attempt.id, failure=as_failure(WorkerLost(message))))
            driver.jobs.cancel(name, attempt.id)


def _silence_limit(worker: Worker | None, kind: Kind, model_limit_s: float, call_limit_s: float) -> float | None:
    """Return the seconds that an attempt may report nothing; `None` if the worker ends silent calls itself."""
    if kind == "think":
        return model_limit_s
    return call_limit_s if getattr(worker, "lease", None) is None else None
