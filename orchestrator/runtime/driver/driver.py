"""The only asyncio loop: one inbox, the real clock, a task per job.

It carries events to the machine and the machine's actions to workers and planners' readers, and writes both to the
journal in between. It decides nothing: what runs, what is given up and what a run ends in is the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from itertools import repeat
from typing import Any, assert_never

from ...core.errors import WorkerError
from ...core.events import (
    Action,
    Cancel,
    Cancelled,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    Job,
    Paused,
    Progressed,
    Pruned,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from ...core.interfaces import Progress, Worker, offer
from ...core.result import Failure, Result, Usage, as_failure
from ...machine.machine import Machine
from ...machine.records import Run
from ..journal.journal import Journal
from ..journal.writer import Recorder
from .checked import checked
from .expander import Expander

log = logging.getLogger("plait.driver")

Watcher = Callable[[Event, Machine, list[Action]], None]
"""Called after each event, with the machine as it then is and the actions that followed. Must not block."""


class Driver:
    """Runs a machine on the running event loop, with the given workers.

    A `journal` that is open is written from the start; any other once `recorder.open` is called. A machine that was
    rebuilt from a journal has a time of its own: the driver's clock goes on from there.
    """

    def __init__(
        self, machine: Machine, workers: Iterable[Worker], expander: Expander, journal: Journal | None = None
    ) -> None:
        self.machine = machine
        self.watchers: list[Watcher] = []
        self._workers = {worker.name: worker for worker in workers}
        self._expander = expander
        self.recorder = Recorder(journal, machine) if journal is not None else None
        self._loop = asyncio.get_running_loop()
        self._offset = machine.now - self._loop.time() if machine.now else 0.0
        self._inbox: deque[Event] = deque()
        self._scheduled = False
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, asyncio.Future[tuple[Finish, Run | None]]] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None

    def now(self) -> float:
        """Return the time in seconds, on the event loop's monotonic clock (in a resumed run: on the clock that stood
        still while nobody ran it)."""
        return self._loop.time() + self._offset

    # -- the outside -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all workers side by side; raise the first `WorkerError`, with the others closed again."""
        starts = [asyncio.ensure_future(worker.start()) for worker in self._workers.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self._close_workers()
            raise
        for worker in self._workers.values():
            self._up(worker)
            self._spawn(self._follow(worker))

    def submit(self, event: Submitted) -> asyncio.Future[tuple[Finish, Run | None]]:
        """Hand in a run and return the future of its `Finish` and its records (`None` if it was refused at once)."""
        if self._broken is not None:
            raise WorkerError(f"the driver broke down: {self._broken}") from self._broken
        future: asyncio.Future[tuple[Finish, Run | None]] = self._loop.create_future()
        self._waiting[event.run] = future
        self._post(event)
        return future

    def resume(
        self, run: str, events: Iterable[Event], again: Iterable[Dispatch] = ()
    ) -> asyncio.Future[tuple[Finish, Run | None]]:
        """Go on with a run of a machine that was rebuilt: take in `events`, and make again the dispatches that were
        never made, under their own attempts. Return the future of its `Finish`."""
        future: asyncio.Future[tuple[Finish, Run | None]] = self._loop.create_future()
        self._waiting[run] = future
        for event in events:
            self._post(event)
        for action in again:
            self._loop.call_soon(self._perform, action)
        return future

    def cancel(self, run: str, reason: str = "cancelled by the user") -> None:
        """Give a run up. Its future still resolves, with what was done."""
        self._post(Cancelled(at=self.now(), run=run, reason=reason))

    def prune(self, step: str, reason: str = "pruned by the user") -> None:
        """Give one step up; its run goes on without it."""
        self._post(Pruned(at=self.now(), step=step, reason=reason))

    def pause(self, run: str, on: bool = True) -> None:
        """Start nothing more of a run, or (with `on=False`) go on. What runs is not stopped, and budgets' time runs."""
        self._post(Paused(at=self.now(), run=run, on=on))

    def post(self, event: Event) -> None:
        """Hand in an event from outside, as a program's flow makes them."""
        self._post(event)

    async def close(self) -> None:
        """Give up what still runs, then free workers and journal. May be called twice."""
        for run in list(self._waiting):
            self.cancel(run, "the orchestrator was closed")
        if self._waiting:
            await asyncio.wait(list(self._waiting.values()), timeout=15)
        if self._wake is not None:
            self._wake.cancel()
        tasks = [*self._tasks, *self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close_workers()
        if self.recorder is not None:
            self.recorder.close()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        if self._broken is not None:
            return
        self._inbox.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Take in all that has arrived: written down first, then handled, then acted on."""
        try:
            while self._inbox:
                batch = list(self._inbox)
                self._inbox.clear()
                entries = self.recorder.take(batch) if self.recorder is not None else repeat(None)
                for event, entry in zip(batch, entries, strict=False):
                    actions = self.machine.handle(event)
                    if self.recorder is not None:
                        self.recorder.acted(entry, actions)
                    for watch in self.watchers:
                        watch(event, self.machine, actions)
                    for action in actions:
                        self._perform(action)
                    if self._expander.flows:
                        self._inbox.extend(self._expander.heard(self.machine, self.now()))
        except Exception as error:  # a bug of ours or a full disk: nothing can be trusted after it, so everyone is told
            self._broken = error
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            self._waiting.clear()
            self._inbox.clear()
            for task in self._jobs.values():  # nobody would hear of what they do
                task.cancel()
            log.exception("the driver broke down")
        finally:
            self._scheduled = False

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                if self.recorder is not None:
                    node = self.machine.nodes.get(action.job.step)
                    if node is not None and node.step.side_effects:
                        self.recorder.intent(action.job)
                task = self._loop.create_task(self._work(self._workers[action.worker], action.job))
                self._jobs[action.job.attempt] = task
            case Expand():
                self._inbox.extend(self._expander.expand(action, self.machine, self.now()))
            case Cancel():
                if action.attempt is not None and action.worker is not None:
                    self._spawn(self._cancel(self._workers[action.worker], action.attempt))
            case WakeAt():
                if self._wake is not None:
                    self._wake.cancel()
                self._wake = self._loop.call_at(action.at - self._offset, self._tick)
            case Finish():
                self._expander.forget(action.run)
                future = self._waiting.pop(action.run, None)
                if future is not None and not future.done():
                    record = next((run for run in self.machine.retired if run.id == action.run), None)
                    future.set_result((action, record))
            case _:
                assert_never(action)

    def _tick(self) -> None:
        self._wake = None
        self._post(Tick(at=self.now()))

    # -- workers -----------------------------------------------------------------------------------------------------

    async def _work(self, worker: Worker, job: Job) -> None:
        """Run one job and post its news: any number of `Progressed`, then exactly one end."""
        attempt = job.attempt
        end: Result | Failure | None = None
        try:
            async with contextlib.aclosing(checked(worker.run(job))) as news:
                async for item in news:
                    if isinstance(item, Progress):
                        self._post(Progressed(at=self.now(), attempt=attempt, **_fields(item)))
                    else:
                        end = item
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # given up from outside, as `close` does
                raise
            raised = f"{worker.name} raised {type(error).__name__}, which is no way to end a job"
            end = as_failure(error if isinstance(error, Exception) else WorkerError(raised))
        finally:
            self._jobs.pop(attempt, None)
        if end is None:
            end = as_failure(WorkerError(f"{worker.name} ended this job without a result"))
        if isinstance(end, Failure):
            used, end = end.usage, end.model_copy(update={"usage": Usage()})
            self._post(Failed(at=self.now(), attempt=attempt, failure=end, usage=used))
        elif end.finish == "cancelled":
            self._post(Stopped(at=self.now(), attempt=attempt, result=end))
        else:
            self._post(Succeeded(at=self.now(), attempt=attempt, result=end))

    async def _cancel(self, worker: Worker, attempt: int) -> None:
        try:
            await worker.cancel(attempt)
        except Exception as error:  # the machine's grace for this attempt covers it
            log.warning("%s could not cancel attempt %d: %s", worker.name, attempt, error)

    async def _follow(self, worker: Worker) -> None:
        """Report a worker's health until it is gone."""
        up = True
        try:
            async for healthy in worker.health():
                if healthy and not up:
                    self._up(worker)
                elif up and not healthy:
                    self._post(WorkerDown(at=self.now(), worker=worker.name, returning=True))
                up = healthy
        except Exception as error:
            log.warning("%s lost: %s", worker.name, error)
        self._post(WorkerDown(at=self.now(), worker=worker.name))

    def _up(self, worker: Worker) -> None:
        self._post(arrival(worker, self.now()))

    async def _close_workers(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(Exception):
                await worker.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def arrival(worker: Worker, at: float) -> WorkerUp:
    """Return the event that says what a worker offers."""
    said = offer(worker)
    return WorkerUp(
        at=at,
        worker=worker.name,
        slots=said.slots,
        serves=said.serves,
        models=said.models,
        cache_tokens=said.cache_tokens,
        block=said.block,
    )


def _fields(news: Progress) -> dict[str, Any]:
    """Return what a worker's news says, without what it leaves at its default."""
    fields: dict[str, Any] = {"text": news.text, "tokens": news.tokens, "logprob": news.logprob}
    if news.ids:
        fields["ids"] = news.ids
    if news.group is not None or news.lowest is not None:
        fields["group"], fields["lowest"] = news.group, news.lowest
    return fields
