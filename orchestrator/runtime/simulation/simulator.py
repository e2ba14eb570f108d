"""The same machine under virtual time: what a plan, a policy or a cluster would do, without one.

A heap of future news takes the place of workers and clock; there is no asyncio and no waiting. `latency.py` says
what steps cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import assert_never

from ...core.errors import ConfigError, InvariantError
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
    Progressed,
    Status,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from ...core.graph import validate
from ...core.interfaces import Brief, Planner, Plugins, Policy
from ...core.plan import Kind, Plan, Plugin, Request, Think
from ...core.result import Failure, Result, Usage
from ...core.states import State
from ...core.tools.tool import ToolSpec
from ...core.values import Frozen
from ...machine import Machine, Run, check as check_invariants
from ..client.report import Spell, report
from ..driver.expander import Expander
from ..plugins.loader import Plugins as Registry
from .confidence import NEWS_PER_WINDOW, Confidence, looks, synthetic, trace_of
from .latency import Batch, Fault, GiveUp, Host, LatencyModel, Outcome, Running, Throttle, priced, varied, whole
from .tokens import SimTokens

__all__ = [
    "Confidence", "Fault", "GiveUp", "Host", "LatencyModel", "SimReport", "Span", "Throttle", "simulate", "synthetic",
    "varied", "whole",
]  # fmt: skip

Watch = Callable[[Event, list[Action]], None]
_RUN = "sim"


class Span(Frozen):
    """One attempt on a host: a bar of a Gantt chart. Times in seconds after the run began."""

    step: str
    """Step id."""
    attempt: int
    host: str
    kind: Kind
    ready: float
    """When the step was ready; from here to `start` it waited for a slot or a budget."""
    start: float
    end: float
    """When the machine heard of its end, and the slot was free again."""
    tokens: int = 0
    """Generated."""
    end_in: str
    """`done`, `failed`, `stopped` or `lost` (with its host)."""
    prompt: int = 0
    """Tokens of its prompt."""
    cached: int = 0
    """How many of these the host's prefix cache held."""
    reason: str = ""
    """Why it was sent to this host, if a policy said so."""


class SimReport(Frozen):
    """What a simulated run came to."""

    status: Status
    makespan: float
    """Seconds from submission to the end."""
    result: Result | None
    failure: Failure | None
    usage: Usage
    """Tokens; those of cancelled, failed and lost attempts are `usage.cancelled`."""
    critical_path_tokens: int
    prompt_computed: int = 0
    """Prompt tokens that hosts with a prefix cache read because it did not hold them, of lost attempts too."""
    prompt_unique: int = 0
    """The least that could be: tokens of these prompts that no earlier prompt or output begins with."""
    waited_for: tuple[Spell, ...]
    """The chain of steps that the end waited for, with the seconds each waited and ran."""
    busy: dict[str, float]
    """Share of its slots' time that each host was busy."""
    wait_mean: float
    """Seconds that an attempt waited for a slot or a budget, on average."""
    wait_max: float
    steps: int
    """Steps that entered the plan."""
    events: int
    """Events that the machine took."""
    spans: tuple[Span, ...]
    """All attempts, by start."""


def simulate(
    request: Request | Plan,
    *,
    plan: Plan | None = None,
    planner: Planner | None = None,
    hosts: Sequence[Host] = (Host("host"),),
    latency: LatencyModel | None = None,
    outcome: Outcome = whole,
    confidence: Confidence | None = None,
    policies: Sequence[Policy] | None = None,
    faults: Iterable[Fault | Throttle | GiveUp] = (),
    tools: Sequence[ToolSpec] = (),
    plugins: Plugins | None = None,
    seed: int = 0,
    grace: float = 10.0,
    lease: float | None = None,
    check: bool = False,
    watch: Watch | None = None,
) -> SimReport:
    """Run one request to its end in virtual time. The same arguments give the same report.

    Args:
        request: what is asked, or just a plan.
        plan: the plan to run, in place of a planner's.
        planner: makes the plan and its patches; the request's own, by name, if left out.
        hosts: the cluster.
        latency: times that are not the model's.
        outcome: what each job ends in, the model's and the tools' part.
        confidence: how sure the model is of each token (`synthetic()`, or recorded ones), for think steps that ask for
            it (`Sampling.logprobs`, `window`): without it no news tells of confidence, and prunings by it see nothing.
        policies: take the place of the request's.
        faults: workers that go away (one after another for each worker) or change their speed, and the user's giving
            up.
        tools: what planners are told.
        plugins: where policies, merges and the task come from.
        seed: of the random numbers that `outcome` and `latency` are given.
        grace: see `Machine`.
        lease: see `Machine`.
        check: test the machine's invariants after every event (slow).
        watch: called with each event and the actions that followed.

    Raises `ConfigError` for a cluster that makes no sense, and what planner or plan are refused for: `PlanError`,
    `PlannerError`, `PluginError`, `TaskError`.
    """
    if isinstance(request, Plan):
        request, plan = Request(), request
    source: Plugins = plugins or Registry()
    if policies is not None:
        source = _Given(source, policies)
        request = request.model_copy(update={"policies": source.specs})
    expander = Expander()
    if plan is None:
        planner = planner or Registry().planner(request.planner)
        brief = Brief(request, source.task(request.task, request.text), tuple(tools))
        submitted = expander.start(_RUN, planner, brief, 0.0)
    else:
        submitted = Submitted(at=0.0, run=_RUN, request=request, plan=plan)
    validate(submitted.plan)
    machine = Machine(source, cancel_timeout=grace, lease=lease)
    simulation = _Simulation(machine, expander, hosts, latency or LatencyModel(), outcome, seed)
    simulation.check, simulation.watch, simulation.confidence = check, watch, confidence
    return simulation.run(submitted, faults)


class _Given:
    """Plugins by name, and policies that are already there."""

    def __init__(self, plugins: Plugins, policies: Sequence[Policy]) -> None:
        self.merge, self.task = plugins.merge, plugins.task
        self._policies = {f"given-{i}": policy for i, policy in enumerate(policies)}
        self.specs = tuple(Plugin(name=name) for name in self._policies)

    def policy(self, spec: Plugin) -> Policy:
        return self._policies[spec.name]


class _Simulation:
    """One run under way."""

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
        self.check = False
        self.watch: Watch | None = None
        self.confidence: Confidence | None = None
        self._machine, self._expander, self._latency = machine, expander, latency
        self._outcome, self._seed = outcome, seed
        self._batches = {host.name: Batch(host) for host in hosts}
        self._up = set(self._batches)
        self._now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._running: dict[int, Running] = {}
        self._ready: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._changed: dict[str, Batch] = {}
        self._wakes = 0
        self._events = 0
        self._spans: list[Span] = []
        self._tokens = SimTokens(hosts)
        self._finish: Finish | None = None
        self._record: Run | None = None

    def run(self, submitted: Submitted, faults: Iterable[Fault | Throttle | GiveUp]) -> SimReport:
        for batch in self._batches.values():
            self._come(batch.host)
        for fault in faults:
            if not isinstance(fault, GiveUp) and fault.worker not in self._batches:
                raise ConfigError(f"a fault is planned for {fault.worker!r}, which is no host")
            self._later(fault.at, lambda fault=fault: self._strike(fault))
        self._take(submitted)
        while self._finish is None:
            if not self._heap:
                raise InvariantError(f"the simulated run is stuck at {self._now:g} s: nothing is left to happen")
            self._now, _, happen = heapq.heappop(self._heap)
            happen()
        return self._report(self._finish)

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """Hand an event to the machine and do as it says."""
        actions = self._machine.handle(event)
        self._events += 1
        for at, step, _, state, _ in self._machine.moves:
            if state == State.READY:
                self._ready[step] = at
        if self._machine.retired:
            self._record = self._machine.retired[0]
        if self.watch is not None:
            self.watch(event, actions)
        if self.check:
            check_invariants(self._machine)
        for action in actions:
            self._perform(action)
        if self._expander.flows:
            at = self._now + self._latency.planner
            for said in self._expander.heard(self._machine, at):
                self._later(at, lambda said=said: self._take(said))
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
                    self._later(self._now + self._latency.abort_latency, lambda: self._abort(running))
            case Expand():
                at = self._now + self._latency.planner
                for event in self._expander.expand(action, self._machine, at):
                    self._later(at, lambda event=event: self._take(event))
            case WakeAt():
                self._wakes += 1
                number = self._wakes
                self._later(max(self._now, action.at), lambda: self._wake(number))
            case Finish():
                self._finish = action
            case _:
                assert_never(action)

    def _later(self, at: float, happen: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, happen))

    def _wake(self, number: int) -> None:
        if number == self._wakes:
            self._take(Tick(at=self._now))

    # -- workers -------------------------------------------------------------------------------------------------------

    def _come(self, host: Host) -> None:
        self._up.add(host.name)
        come = WorkerUp(self._now, host.name, host.slots, host.serves, host.models)
        if host.cache_tokens:
            come.cache_tokens, come.block = host.cache_tokens, host.block
        self._take(come)

    def _strike(self, fault: Fault | Throttle | GiveUp) -> None:
        if isinstance(fault, Throttle):
            batch = self._batches[fault.worker]
            batch.throttle(fault.share, self._now)
            self._plan_news(batch)
        elif isinstance(fault, GiveUp):
            self._take(Cancelled(at=self._now, run=_RUN))
        else:
            self._fail_host(fault)

    def _fail_host(self, fault: Fault) -> None:
        if fault.worker not in self._up:
            raise ConfigError(f"a fault is planned for {fault.worker!r} at {fault.at:g} s, when it is down already")
        self._up.discard(fault.worker)
        batch = self._batches[fault.worker]
        for running in [each for each in self._running.values() if each.host is batch.host]:
            self._end(running, "lost", batch.generated(running, self._now))
        batch.clear(self._now)
        self._tokens.forget(batch.host)
        if fault.down_for is not None:
            self._later(self._now + fault.down_for, lambda: self._come(batch.host))
        self._take(WorkerDown(at=self._now, worker=fault.worker, returning=fault.down_for is not None))

    def _dispatch(self, worker: str, job: Job, reason: str) -> None:
        op, batch = job.op, self._batches[worker]
        number = self._tries.get(job.step, 0)
        if not job.generated or not number:  # an attempt that goes on meets the fate of the one it goes on from
            number = self._tries[job.step] = number + 1
        rng = Random(f"{self._seed}/{job.step}/{number}")
        outcome = self._outcome(job, rng)
        if isinstance(op, Think) and isinstance(outcome, Result):
            outcome = priced(job, outcome)
        ready = self._ready.get(job.step, self._now)
        running = Running(job, batch.host, ready, self._now, outcome, 0, reason=reason)
        if isinstance(op, Think):
            running.chunk = self._latency.chunk if op.stream or batch.host.tells_ids else 0
            self._tokens.begin(running, number)
            self._look(running, outcome, number)
        self._running[job.attempt] = running
        starts = self._now + self._latency.dispatch
        if isinstance(op, Think):
            usage = running.outcome.usage if isinstance(running.outcome, Result) else Usage()
            read = batch.prefill(usage.prompt - usage.cached, starts)
            self._later(read, lambda: self._decode(running))
        else:
            self._later(starts + self._latency.seconds(job, rng), lambda: self._complete(running))

    def _look(self, running: Running, whole: Result | Failure, number: int) -> None:
        """Give a job its confidences, if it asks for them and they are known."""
        op, outcome = running.job.op, running.outcome
        if self.confidence is None or op.kind != "think" or not looks(op.sampling):
            return
        if not isinstance(whole, Result) or not isinstance(outcome, Result):
            return
        rng = Random(f"{self._seed}/{running.job.step}/{number}/confidence")
        trace = trace_of(self.confidence, running.job, whole, rng, running.given, running.tokens)
        running.trace = trace
        if outcome.signals is None:
            running.outcome = outcome.model_copy(update={"signals": trace.signals(op.sampling.logprobs)})
        if trace.window and not running.chunk:
            running.chunk = max(1, trace.window // NEWS_PER_WINDOW)

    def _decode(self, running: Running) -> None:
        """A prompt has been read."""
        if running.over:
            return
        if not running.tokens:
            self._complete(running)
            return
        batch = self._batches[running.host.name]
        batch.join(running, self._now)
        self._plan_news(batch)

    def _plan_news(self, batch: Batch) -> None:
        """See to it that the batch's next news comes when it is due."""
        batch.version += 1
        version = batch.version
        at = batch.next_at()
        if at is not None:
            self._later(max(self._now, at), lambda: self._news(batch, version))

    def _news(self, batch: Batch, version: int) -> None:
        if version != batch.version:
            return
        running, upto = batch.due(self._now)
        self._changed[batch.host.name] = batch
        op = running.job.op
        group, lowest = running.trace.told(upto) if running.trace is not None else (None, None)
        news = Progressed(
            at=self._now,
            attempt=running.job.attempt,
            text=running.slice(upto) if isinstance(op, Think) and op.stream else "",
            tokens=upto - running.told,
            ids=self._tokens.told(running, upto),
            group=group,
            lowest=lowest,
        )
        if upto < running.tokens:
            batch.told(running, upto)
            self._take(news)
            return
        if running.chunk:
            running.told = upto
            self._take(news)
            self._changed[batch.host.name] = batch
        if self._finish is None:
            self._complete(running)

    def _complete(self, running: Running) -> None:
        """A job has come to its end by itself."""
        if running.over:
            return
        attempt, outcome = running.job.attempt, running.outcome
        if isinstance(outcome, Failure):
            self._end(running, "failed", 0)
            self._take(Failed(at=self._now, attempt=attempt, failure=outcome))
        else:
            self._end(running, "done", outcome.usage.completion)
            self._take(Succeeded(at=self._now, attempt=attempt, result=outcome))

    def _abort(self, running: Running) -> None:
        if running.over:
            return
        batch = self._batches[running.host.name]
        tokens = batch.generated(running, self._now)
        usage = running.outcome.usage if isinstance(running.outcome, Result) else Usage()
        self._end(running, "stopped", tokens)
        usage = Usage(prompt=usage.prompt, cached=usage.cached, completion=tokens)
        self._take(Stopped(at=self._now, attempt=running.job.attempt, result=Result(finish="cancelled", usage=usage)))

    def _end(self, running: Running, end_in: str, tokens: int) -> None:
        running.over = True
        batch = self._batches[running.host.name]
        batch.leave(running, self._now)
        self._changed[batch.host.name] = batch
        del self._running[running.job.attempt]
        self._tokens.end(running, tokens)
        usage = running.outcome.usage if isinstance(running.outcome, Result) else Usage()
        self._spans.append(
            Span(
                step=running.job.step,
                attempt=running.job.attempt,
                host=running.host.name,
                kind=running.job.op.kind,
                ready=running.ready,
                start=running.start,
                end=self._now,
                tokens=tokens,
                end_in=end_in,
                prompt=usage.prompt,
                cached=usage.cached,
                reason=running.reason,
            )
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def _report(self, finish: Finish) -> SimReport:
        spans = sorted(self._spans, key=lambda span: (span.start, span.attempt))
        held = dict.fromkeys(self._batches, 0.0)
        for span in spans:
            held[span.host] += span.end - span.start
        waits = [span.start - span.ready for span in spans]
        room = {name: batch.host.slots * self._now for name, batch in self._batches.items()}
        return SimReport(
            status=finish.status,
            makespan=self._now,
            result=finish.result,
            failure=finish.failure,
            usage=finish.usage,
            critical_path_tokens=finish.critical_path_tokens,
            prompt_computed=self._tokens.computed,
            prompt_unique=self._tokens.unique,
            waited_for=report(finish, self._record, 0.0, self._now).waited_for,
            busy={name: seconds / room[name] if room[name] else 0.0 for name, seconds in held.items()},
            wait_mean=sum(waits) / len(waits) if waits else 0.0,
            wait_max=max(waits, default=0.0),
            steps=finish.steps,
            events=self._events,
            spans=tuple(spans),
        )
