"""Simulate one run of a plan, with policies and a cluster, under virtual time (for many runs see `workload.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait.core.events import Cancelled, Finish, Status, Submitted
from plait.core.interfaces import Planner, PlanningContext, PluginRegistry, Policy
from plait.core.ops import Kind, Plugin
from plait.core.plan import Plan, validate
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.tools.tool import ToolSpec
from plait.core.values import Frozen
from plait.machine import Machine, Run
from plait.runtime.client.answer import CriticalPathSegment, report
from plait.runtime.driver.expander import Expander
from plait.runtime.plugins.loader import Plugins as Registry
from plait.runtime.runlog import RunRecord

from .cluster import Check, Cluster, Watch
from .confidence import Confidence, synthetic
from .latency import GiveUp, Host, LatencyModel, Outcome, RunningJob, Throttle, WorkerFault, varied, whole

__all__ = [
    "Confidence",
    "GiveUp",
    "Host",
    "LatencyModel",
    "SimReport",
    "Span",
    "Throttle",
    "WorkerFault",
    "simulate",
    "synthetic",
    "varied",
    "whole",
]  # fmt: skip

_RUN = "sim"


class Span(Frozen):
    """One attempt on a host (a bar of a Gantt chart). Times are in seconds from the run's begin."""

    step: str
    """Step id."""
    attempt: int
    host: str
    kind: Kind
    ready: float
    """Time at which the step was ready; until `start` it waited for a slot or a budget."""
    start: float
    end: float
    """Time at which the machine received the attempt's end and the slot was free again."""
    tokens: int = 0
    """Number of generated tokens."""
    end_in: str
    """`done`, `failed`, `stopped` or `lost` (with its host)."""
    prompt: int = 0
    """Number of prompt tokens."""
    cached: int = 0
    """Number of prompt tokens in the host's prefix cache."""
    reason: str = ""
    """The policy's reason for this host, if it gave one."""


class SimReport(Frozen):
    """The report of a simulated run."""

    status: Status
    makespan: float
    """Seconds from submission to the end."""
    result: Result | None
    failure: Failure | None
    usage: Usage
    """Token usage. Tokens of cancelled, failed and lost attempts are in `usage.cancelled`."""
    critical_path_tokens: int
    prompt_computed: int = 0
    """Number of uncached prompt tokens that hosts with a prefix cache computed, including lost attempts."""
    prompt_unique: int = 0
    """Lower bound of `prompt_computed`: tokens of these prompts that no earlier prompt or output begins with."""
    waited_for: tuple[CriticalPathSegment, ...]
    """The critical path: its steps, with the seconds that each step waited and ran."""
    busy: dict[str, float]
    """Busy share of each host's slot time."""
    wait_mean: float
    """Mean seconds that an attempt waited for a slot or a budget."""
    wait_max: float
    steps: int
    """Number of steps that entered the plan."""
    events: int
    """Number of events that the machine handled."""
    spans: tuple[Span, ...]
    """All attempts, sorted by start."""


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
    faults: Iterable[WorkerFault | Throttle | GiveUp] = (),
    tools: Sequence[ToolSpec] = (),
    plugins: PluginRegistry | None = None,
    seed: int = 0,
    grace: float = 10.0,
    lease: float | None = None,
    check: Check | None = None,
    watch: Watch | None = None,
) -> SimReport:
    """Run one request to its end in virtual time. The same arguments give the same report.

    Args: request: the request, or only a plan. plan: the plan to run instead of a planner's plan. planner: makes the
        plan and its patches; the request's own, by name, if left out. hosts: the cluster. latency: latencies outside
        the model. outcome: the outcome of each job of a model or a tool. confidence: how sure the model is of each
        token (`synthetic()`, or recorded ones), for think steps that ask for it (`Sampling.logprobs`, `window`):
        without it no news tells of confidence, and prunings by it see nothing. policies: take the place of the
        request's. faults: workers that go away (one after another for each worker) or change their speed, and the
        user's giving up. tools: the tools that planners see. plugins: the registry for policies, merges and the task.
        seed: of the random numbers that `outcome` and `latency` are given. grace: see `Machine`. lease: see `Machine`.
        check: called with the machine after every event. watch: called with each event and the actions
        that followed.

    Raises `ConfigError` for an invalid cluster, and the errors of an invalid planner or plan: `PlanError`,
    `PlannerError`, `PluginError`, `TaskError`.
    """
    if isinstance(request, Plan):
        request, plan = Request(), request
    source: PluginRegistry = plugins or Registry()
    if policies is not None:
        source = _GivenPlugins(source, policies)
        request = request.model_copy(update={"policies": source.specs})
    expander = Expander()
    if plan is None:
        planner = planner or Registry().planner(request.planner)
        brief = PlanningContext(request, source.task(request.task, request.text), tuple(tools), Registry())
        submitted = expander.start(_RUN, planner, brief, 0.0)
    else:
        submitted = Submitted(at=0.0, run=_RUN, request=request, plan=plan)
    validate(submitted.plan)
    machine = Machine(source, cancel_timeout=grace, lease=lease)
    simulation = _Single(machine, expander, hosts, latency or LatencyModel(), outcome, seed)
    simulation.check, simulation.watch, simulation.confidence = check, watch, confidence
    return simulation.run(submitted, faults)


class _GivenPlugins:
    """A registry of plugins by name that also returns given policies."""

    def __init__(self, plugins: PluginRegistry, policies: Sequence[Policy]) -> None:
        self.merge, self.task = plugins.merge, plugins.task
        self._policies = {f"given-{i}": policy for i, policy in enumerate(policies)}
        self.specs = tuple(Plugin(name=name) for name in self._policies)

    def policy(self, spec: Plugin) -> Policy:
        return self._policies[spec.name]


class _Single(Cluster):
    """A cluster with one run."""

    def run(self, submitted: Submitted, faults: Iterable[WorkerFault | Throttle | GiveUp]) -> SimReport:
        self._spans: list[Span] = []
        faults = list(faults)
        self.start(fault for fault in faults if not isinstance(fault, GiveUp))
        for fault in faults:
            if isinstance(fault, GiveUp):
                self.later(fault.at, lambda: self.take(Cancelled(at=self.now, run=_RUN)))
        self.left = 1
        self.take(submitted)
        self.play()
        return self._report

    def attempt_over(self, running: RunningJob, end_in: str, tokens: int, usage: Usage) -> None:
        self._spans.append(
            Span(
                step=running.job.step,
                attempt=running.job.attempt,
                host=running.host.name,
                kind=running.job.op.kind,
                ready=running.ready,
                start=running.start,
                end=self.now,
                tokens=tokens,
                end_in=end_in,
                prompt=usage.prompt,
                cached=usage.cached,
                reason=running.reason,
            )
        )

    def run_over(self, finish: Finish, run: Run | None) -> None:
        spans = sorted(self._spans, key=lambda span: (span.start, span.attempt))
        held = dict.fromkeys(self.batches, 0.0)
        for span in spans:
            held[span.host] += span.end - span.start
        waits = [span.start - span.ready for span in spans]
        room = {name: batch.host.slots * self.now for name, batch in self.batches.items()}
        self._report = SimReport(
            status=finish.status,
            makespan=self.now,
            result=finish.result,
            failure=finish.failure,
            usage=finish.usage,
            critical_path_tokens=finish.critical_path_tokens,
            prompt_computed=self.tokens.computed,
            prompt_unique=self.tokens.unique,
            waited_for=() if run is None else report(RunRecord(run.id, 0.0, run.request, records=run)).waited_for,
            busy={name: seconds / room[name] if room[name] else 0.0 for name, seconds in held.items()},
            wait_mean=sum(waits) / len(waits) if waits else 0.0,
            wait_max=max(waits, default=0.0),
            steps=finish.steps,
            events=self.events,
            spans=tuple(spans),
        )
