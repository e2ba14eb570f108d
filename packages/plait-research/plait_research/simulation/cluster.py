"""A cluster of modelled engines around one machine, under virtual time.

A heap of future events replaces workers and clock, without asyncio and without waiting. `latency.py` defines the cost
of steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import assert_never

from plait.core.errors import ConfigError, InvariantError
from plait.core.events import (
    Action,
    Cancel,
    Count,
    Counted,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    Job,
    Progressed,
    Stopped,
    Succeeded,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait.core.states import State
from plait.machine import Machine, Run
from plait.runtime.driver.expander import Expander

from .confidence import NEWS_PER_WINDOW, Confidence, looks, trace_of
from .latency import DecodeBatch, Host, LatencyModel, Outcome, RunningJob, Throttle, WorkerFault, priced
from .steps import StepBatch
from .tokens import SimTokens

Watch = Callable[[Event, list[Action]], None]
Check = Callable[[Machine], None]


class Cluster:
    """Hosts and their machine. Subclasses record the outcomes of attempts and runs."""

    def __init__(
        self,
        machine: Machine,
        expander: Expander,
        hosts: Sequence[Host],
        latency: LatencyModel,
        outcome: Outcome,
        seed: int,
    ) -> None:
        if not hosts or len({host.name for host in hosts}) != len(hosts):
            raise ConfigError("a simulation needs hosts, each with a name of its own")
        self.check: Check | None = None
        self.watch: Watch | None = None
        self.confidence: Confidence | None = None
        self.machine: Machine
        self.expander: Expander
        self.machine, self.expander, self._latency = machine, expander, latency
        self._outcome, self._seed = outcome, seed
        self.batches: dict[str, DecodeBatch] = {
            host.name: StepBatch(host) if host.step_tokens else DecodeBatch(host) for host in hosts
        }
        self._up: set[str] = set()
        self.now: float = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._running: dict[int, RunningJob] = {}
        self._ready: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._changed: dict[str, DecodeBatch] = {}
        self._wakes = 0
        self.events: int = 0
        """Number of events that the machine handled."""
        self.tokens: SimTokens = SimTokens(hosts)
        self.left: int = 0
        """Number of unfinished runs, including runs that have not arrived."""

    def start(self, faults: Iterable[WorkerFault | Throttle]) -> None:
        """Start the hosts, and schedule their faults."""
        for name in self.batches:
            self.come(name)
        for fault in faults:
            if fault.worker not in self.batches:
                raise ConfigError(f"a fault is planned for {fault.worker!r}, which is no host")
            self.later(fault.at, lambda fault=fault: self.strike(fault))

    def play(self) -> None:
        """Run until all runs have finished."""
        heap = self._heap
        while self.left:
            if not heap:
                raise InvariantError(f"the simulation is stuck at {self.now:g} s: nothing is left to happen")
            self.now, _, happen = heapq.heappop(heap)
            happen()

    def attempt_over(self, running: RunningJob, end_in: str, tokens: int, usage: Usage) -> None:
        """Record the end of an attempt: `done`, `failed`, `stopped` or `lost`, after `tokens` tokens."""
        raise NotImplementedError

    def run_over(self, finish: Finish, run: Run | None) -> None:
        """Record the end of a run; `run` is `None` for a run that was rejected at once."""
        raise NotImplementedError

    # -- the machine ---------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Pass an event to the machine and execute its actions."""
        actions = self.machine.handle(event)
        self.events += 1
        for at, step, _, state, _ in self.machine.moves:
            # The wait for a slot begins here, not when the step entered the plan.
            if state == State.READY:
                self._ready[step] = at
        if self.watch is not None:
            self.watch(event, actions)
        if self.check is not None:
            self.check(self.machine)
        for action in actions:
            self._perform(action)
        if self.expander.flows:
            at = self.now + self._latency.planner
            for news in self.expander.collect_events(self.machine, at):
                self.later(at, lambda news=news: self.take(news))
        if self._changed:
            for batch in self._changed.values():
                self._plan_news(batch)
            self._changed.clear()

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatch(action.worker, action.job, action.reason)
            case Cancel():
                running = self._running.get(action.attempt) if action.attempt is not None else None
                if running is not None:
                    self.later(self.now + self._latency.abort_latency, lambda: self._abort(running))
            case Expand():
                at = self.now + self._latency.planner
                for event in self.expander.expand(action, self.machine, at):
                    self.later(at, lambda event=event: self.take(event))
            case Count():
                self.later(self.now, lambda: self.take(Counted(at=self.now, step=action.step)))
            case WakeAt():
                self._wakes += 1
                # Only the last wake-up time counts, as with the driver's single timer.
                number = self._wakes
                self.later(max(self.now, action.at), lambda: self._wake(number))
            case Finish():
                self._finish(action)
            case _:
                assert_never(action)

    def _finish(self, finish: Finish) -> None:
        self.left -= 1
        record = self.machine.find_finished(finish.run)
        self.run_over(finish, record)
        self.expander.forget(finish.run)
        for node in record.nodes if record is not None else ():
            self._ready.pop(node.id, None)
            self.tokens.over(node.id, self._tries.pop(node.id, 0))

    def later(self, at: float, happen: Callable[[], None]) -> None:
        """Schedule a callback at a time."""
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, happen))

    def _wake(self, number: int) -> None:
        if number == self._wakes:
            self.take(Tick(at=self.now))

    # -- workers -------------------------------------------------------------------------------------------------------

    def come(self, name: str) -> None:
        """Start a host."""
        host = self.batches[name].host
        self._up.add(name)
        come = WorkerUp(self.now, host.name, host.slots, host.serves, host.models)
        if host.cache_tokens:
            come.cache_tokens, come.block = host.cache_tokens, host.block
        come.reports = host.reports or None
        if host.price is not None:
            come.prices = {"": host.price}
        self.take(come)

    def strike(self, fault: WorkerFault | Throttle) -> None:
        """Remove a host, or change its speed."""
        if isinstance(fault, Throttle):
            batch = self.batches[fault.worker]
            batch.throttle(fault.share, self.now)
            self._plan_news(batch)
        else:
            self._fail_host(fault)

    def _fail_host(self, fault: WorkerFault) -> None:
        if fault.worker not in self._up:
            raise ConfigError(f"a fault is planned for {fault.worker!r} at {fault.at:g} s, when it is down already")
        self._up.discard(fault.worker)
        batch = self.batches[fault.worker]
        for running in [job for job in self._running.values() if job.host is batch.host]:
            self._end(running, "lost", batch.generated(running, self.now))
        batch.clear(self.now)
        self.tokens.forget(batch.host)
        if fault.down_for is not None:
            self.later(self.now + fault.down_for, lambda: self.come(fault.worker))
        self.take(WorkerDown(at=self.now, worker=fault.worker, returning=fault.down_for is not None))

    def _dispatch(self, worker: str, job: Job, reason: str) -> None:
        op, batch = job.op, self.batches[worker]
        number = self._tries.get(job.step, 0)
        if not job.generated or not number:  # a resumed attempt has the outcome of the attempt that it continues
            number = self._tries[job.step] = number + 1
        rng = Random(f"{self._seed}/{job.step}/{number}")
        outcome = self._outcome(job, rng)
        if isinstance(op, ModelCall) and isinstance(outcome, Result):
            outcome = priced(job, outcome, batch.host.text)
        ready = self._ready.get(job.step, self.now)
        running = RunningJob(job, batch.host, ready, self.now, outcome, 0, reason=reason)
        if isinstance(op, ModelCall):
            streams = bool(op.stream) or batch.host.tells_ids
            asked = [chunk for chunk, due in ((self._latency.chunk, streams), (batch.host.reports, job.report)) if due]
            running.chunk = min(asked, default=0)
            self.tokens.begin(running, number)
            self._look(running, outcome, number)
        self._running[job.attempt] = running
        starts = self.now + self._latency.dispatch
        if isinstance(op, ModelCall):
            usage = running.outcome.usage if isinstance(running.outcome, Result) else Usage()
            if isinstance(batch, StepBatch):
                running.unread = usage.prompt - usage.cached
                self.later(starts, lambda: self._read(batch, running))
                return
            if batch.host.blocking:
                batch.advance(self.now)
                self._changed[worker] = batch
            read = batch.prefill(usage.prompt - usage.cached, starts)
            self.later(read, lambda: self._decode(running))
        else:
            self.later(starts + self._latency.seconds(job, rng), lambda: self._complete(running))

    def _read(self, batch: StepBatch, running: RunningJob) -> None:
        batch.advance(self.now)
        batch.waiting.append(running)
        self._plan_news(batch)

    def _look(self, running: RunningJob, whole: Result | Failure, number: int) -> None:
        """Set a job's confidences, if its settings request them and they are known."""
        op, outcome = running.job.op, running.outcome
        if self.confidence is None or op.kind != "think" or not looks(op.sampling):
            return
        # A failing job has no tokens, so it needs no confidences.
        if not isinstance(whole, Result) or not isinstance(outcome, Result):
            return
        rng = Random(f"{self._seed}/{running.job.step}/{number}/confidence")
        trace = trace_of(self.confidence, running.job, whole, rng, running.given, running.tokens)
        running.trace = trace
        if outcome.signals is None:
            running.outcome = outcome.model_copy(update={"signals": trace.signals(op.sampling.logprobs)})
        if trace.window and not running.chunk:
            running.chunk = max(1, trace.window // NEWS_PER_WINDOW)

    def _decode(self, running: RunningJob) -> None:
        """Handle the end of a prompt's prefill."""
        if running.over:
            return
        # Nothing is left to generate: the attempt resumed from its last token.
        if not running.tokens:
            self._complete(running)
            return
        batch = self.batches[running.host.name]
        batch.join(running, self.now)
        self._plan_news(batch)

    def _plan_news(self, batch: DecodeBatch) -> None:
        """Schedule the batch's next report at its due time."""
        batch.version += 1
        version = batch.version
        at = batch.next_at()
        if at is not None:
            self.later(max(self.now, at), lambda: self._news(batch, version))

    def _news(self, batch: DecodeBatch, version: int) -> None:
        # The batch has changed since, and so has the time of its next report.
        if version != batch.version:
            return
        if isinstance(batch, StepBatch) and (read := batch.next_step(self.now)) is not None:
            for running in read:
                self._decode(running)
            self._plan_news(batch)
            return
        running, upto = batch.due(self.now)
        self._changed[batch.host.name] = batch
        op = running.job.op
        group, lowest = running.trace.told(upto) if running.trace is not None else (None, None)
        news = Progressed(
            at=self.now,
            attempt=running.job.attempt,
            text=running.slice(upto) if isinstance(op, ModelCall) and op.stream else "",
            tokens=upto - running.told,
            ids=self.tokens.told(running, upto),
            group=group,
            lowest=lowest,
        )
        if upto < running.tokens:
            batch.told(running, upto)
            self.take(news)
            return
        if running.chunk:
            running.told = upto
            self.take(news)
            self._changed[batch.host.name] = batch
        # The event just posted may have ended the last run.
        if self.left:
            self._complete(running)

    def _complete(self, running: RunningJob) -> None:
        """Handle a job that has ended by itself."""
        if running.over:
            return
        attempt, outcome = running.job.attempt, running.outcome
        if isinstance(outcome, Failure):
            self._end(running, "failed", 0)
            self.take(Failed(at=self.now, attempt=attempt, failure=outcome))
        else:
            self._end(running, "done", outcome.usage.completion)
            usage = self._charged(running, outcome.usage)
            result = outcome if usage is outcome.usage else outcome.model_copy(update={"usage": usage})
            self.take(Succeeded(at=self.now, attempt=attempt, result=result))

    def _charged(self, running: RunningJob, usage: Usage) -> Usage:
        """Return an attempt's usage, with its cost on a host with a price."""
        price = running.host.price
        if price is None or running.job.op.kind != "think":
            return usage
        return usage.model_copy(update={"cost": price.of(usage, self.now - running.start)})

    def _abort(self, running: RunningJob) -> None:
        if running.over:
            return
        batch = self.batches[running.host.name]
        tokens = batch.generated(running, self.now)
        usage = running.outcome.usage if isinstance(running.outcome, Result) else Usage()
        self._end(running, "stopped", tokens)
        usage = self._charged(running, Usage(prompt=usage.prompt, cached=usage.cached, completion=tokens))
        text = running.text(tokens) if running.job.op.kind == "think" else None
        result = Result(value=text, finish="cancelled", usage=usage)
        self.take(Stopped(at=self.now, attempt=running.job.attempt, result=result))

    def _end(self, running: RunningJob, end_in: str, tokens: int) -> None:
        running.over = True
        batch = self.batches[running.host.name]
        batch.leave(running, self.now)
        self._changed[batch.host.name] = batch
        del self._running[running.job.attempt]
        self.tokens.end(running, tokens)
        usage = running.outcome.usage if isinstance(running.outcome, Result) else Usage()
        self.attempt_over(running, end_in, tokens, usage)
