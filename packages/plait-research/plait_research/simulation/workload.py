"""Simulate many runs under virtual time, which arrive one after another and share one machine and one cluster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from random import Random
from statistics import fmean, quantiles
from types import MappingProxyType

from plait.core.errors import ConfigError, Overloaded
from plait.core.events import Finish
from plait.core.interfaces import Planner, PlanningContext, PluginRegistry
from plait.core.plan import Plan, validate
from plait.core.request import Request
from plait.core.result import Failure, Usage
from plait.core.tools.tool import ToolSpec
from plait.core.values import Frozen
from plait.machine import Machine, Run
from plait.runtime.driver.admission import Admission
from plait.runtime.driver.expander import Expander
from plait.runtime.plugins.loader import Plugins as Registry

from .cluster import Check, Cluster
from .confidence import Confidence
from .latency import Host, LatencyModel, Outcome, RunningJob, Throttle, WorkerFault, whole

__all__ = ["Spread", "WorkloadReport", "at_rate", "simulate_workload"]


class Spread(Frozen):
    """The distribution of a quantity over runs or attempts, with linearly interpolated percentiles."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the distribution of some values; all fields are 0 without values."""
        if len(values) < 2:
            (only,) = values or (0.0,)
            return cls(mean=only, p50=only, p90=only, p99=only, max=only)
        cuts = quantiles(values, n=100, method="inclusive")
        return cls(mean=fmean(values), p50=cuts[49], p90=cuts[89], p99=cuts[98], max=max(values))


def at_rate(runs: int, rate: float | None, *, seed: int = 0) -> list[float]:
    """Return the arrival times of `runs` runs in seconds, the first 0: a Poisson process of `rate` a second, or all 0
    without a rate. Raises `ConfigError` for invalid numbers."""
    if runs < 1:
        raise ConfigError(f"a workload needs at least one run, not {runs}")
    if rate is None:
        return [0.0] * runs
    if not 0.0 < rate < math.inf:
        raise ConfigError(f"the rate ({rate:g}) must be above 0")
    rng, at, times = Random(f"{seed}/arrivals"), 0.0, [0.0]
    for _ in range(runs - 1):
        at += rng.gammavariate(1.0, 1.0 / rate)
        times.append(at)
    return times


class WorkloadReport(Frozen):
    """The report of a simulated workload. Times are in seconds."""

    runs: int
    done: int
    partial: int
    """Number of runs that ended with values of some steps, but without an answer."""
    failed: int
    cancelled: int
    refused: int = 0
    """Number of rejected runs, since too many waited (`max_waiting`). Only `runs` counts them too."""
    in_time: int = 0
    """Number of runs that were done within the requested seconds; all done runs without a request."""
    makespan: float
    """Time from the first arrival to the last end."""
    latency: Spread
    """Time of a run from its arrival to its end."""
    turn: Spread = Spread()
    """Time of a model call from when it was ready to its end."""
    wait: Spread
    """Time that an attempt waited for a slot or a budget."""
    throughput: float
    """Number of done runs per second."""
    tokens_per_second: float
    """Generated tokens per second, including cancelled attempts."""
    utilisation: float
    """Busy share of the time of all slots of engines; of all workers without an engine."""
    busiest: float
    """Utilisation of the busiest engine."""
    idlest: float
    """Utilisation of the least busy engine."""
    usage: Usage
    """Token usage of all runs. Tokens of cancelled, failed and lost attempts are in `usage.cancelled`."""
    prompt_computed: int
    """As in `SimReport`."""
    prompt_unique: int
    steps: int
    attempts: int
    events: int
    """Number of events that the machine handled."""
    failure: Failure | None
    """Failure of the first failed run."""


def simulate_workload(
    requests: Request | Sequence[Request],
    arrivals: Sequence[float],
    *,
    planner: Planner | Sequence[Planner] | None = None,
    hosts: Sequence[Host] = (Host("host"),),
    latency: LatencyModel | None = None,
    outcome: Outcome = whole,
    confidence: Confidence | None = None,
    after: Mapping[int, tuple[int, float]] = MappingProxyType({}),
    faults: Iterable[WorkerFault | Throttle] = (),
    tools: Sequence[ToolSpec] = (),
    plugins: PluginRegistry | None = None,
    seed: int = 0,
    grace: float = 10.0,
    lease: float | None = None,
    max_waiting: int | None = None,
    within: float = math.inf,
    check: Check | None = None,
) -> WorkloadReport:
    """Simulate a run for each of `arrivals` (seconds) on one machine and one cluster, until the last run has ended.

    Several `requests` are taken in turn, each with its `planner` if there are as many. Each run has a seed of its own,
    made of its request's and its number, and so have the random numbers of `outcome`: the same arguments give the same
    report. `after`: runs, by their numbers, that arrive a delay in seconds after the end of an earlier one
    (`{5: (2, 0.1)}`), as with a client of limited concurrency. `max_waiting`: as in the settings.
    `within`: the seconds of `WorkloadReport.in_time`. Other arguments, and what is raised, as for `simulate`.
    """
    given = [requests] if isinstance(requests, Request) else list(requests)
    if not given or not arrivals:
        raise ConfigError("a workload needs a request and at least one arrival")
    source: PluginRegistry = plugins or Registry()
    machine = Machine(source, cancel_timeout=grace, lease=lease)
    workload = _Workload(machine, Expander(), hosts, latency or LatencyModel(), outcome, seed)
    workload.check, workload.confidence = check, confidence
    workload.admission, workload.within = Admission(max_waiting), within
    briefs = [PlanningContext(request, source.task(request.task, request.text), tuple(tools)) for request in given]
    if planner is None:
        planners = [Registry().planner(request.planner) for request in given]
    else:
        planners = [planner] * len(given) if isinstance(planner, Planner) else list(planner)
    workload.after = after
    return workload.run(list(zip(briefs, planners, strict=True)), sorted(arrivals), faults)


class _Workload(Cluster):
    """A cluster at which runs arrive. It keeps only numbers of ended runs."""

    admission: Admission
    within = math.inf
    after: Mapping[int, tuple[int, float]]

    def run(
        self,
        kinds: Sequence[tuple[PlanningContext, Planner]],
        arrivals: Sequence[float],
        faults: Iterable[WorkerFault | Throttle],
    ) -> WorkloadReport:
        self._kinds, self._arrivals = kinds, arrivals
        self._came: dict[str, float] = {}
        self._latencies: list[float] = []
        self._waits: list[float] = []
        self._turns: list[float] = []
        self._held = dict.fromkeys(self.batches, 0.0)
        self._statuses: Counter[str] = Counter()
        self._usage = Usage()
        self._steps = self._refused = self._in_time = 0
        self._failure: Failure | None = None
        self._plans: list[Plan | None] = [None] * len(kinds)
        # A run that follows another has no arrival time: it arrives when the other run ends.
        self._next = iter([number for number in range(len(arrivals)) if number not in self.after])
        self._followers: dict[int, list[int]] = {}
        for number, (before, _) in self.after.items():
            if not 0 <= before < number < len(arrivals):
                raise ConfigError(f"run {number} cannot arrive after the end of run {before}")
            self._followers.setdefault(before, []).append(number)
        self.start(faults)
        self.left = len(arrivals)
        self._expect_next()
        self.play()
        return self._report()

    def attempt_over(self, running: RunningJob, end_in: str, tokens: int, usage: Usage) -> None:
        self._held[running.host.name] += self.now - running.start
        self._waits.append(running.start - running.ready)
        if running.job.op.kind == "think":
            self._turns.append(self.now - running.ready)

    def run_over(self, finish: Finish, run: Run | None) -> None:
        self._follow(int(finish.run.rpartition("-")[2]))
        self.admission.record_end(self.now)
        self._latencies.append(self.now - self._came.pop(finish.run))
        self._in_time += finish.status == "done" and self._latencies[-1] <= self.within
        self._statuses[finish.status] += 1
        self._usage += finish.usage
        self._steps += finish.steps
        self._failure = self._failure or finish.failure

    def _expect_next(self) -> None:
        """Start the next run that does not follow another run."""
        number = next(self._next, None)
        if number is not None:
            self.later(self._arrivals[number], lambda: self._arrive(number, self._expect_next))

    def _follow(self, number: int) -> None:
        """Record the end of a run, and start the runs that follow it."""
        for follower in self._followers.get(number, ()):
            self.later(self.now + self.after[follower][1], lambda follower=follower: self._arrive(follower))

    def _arrive(self, number: int, then: Callable[[], None] | None = None) -> None:
        if then is not None:
            then()
        try:
            self.admission.check(self.machine, self.now)
        except Overloaded:
            self._refused += 1
            self.left -= 1
            self._follow(number)
            return
        kind = number % len(self._kinds)
        brief, planner = self._kinds[kind]
        run, request = f"run-{number}", brief.request
        own = PlanningContext(request.model_copy(update={"seed": request.seed + number}), brief.task, brief.tools)
        submitted = self.expander.start(run, planner, own, self.now)
        if submitted.plan != self._plans[kind]:  # planners usually return an equal plan
            validate(submitted.plan)
            self._plans[kind] = submitted.plan
        self._came[run] = self.now
        self.take(submitted)

    def _report(self) -> WorkloadReport:
        seconds = self.now - self._arrivals[0]
        hosts = [batch.host for batch in self.batches.values()]
        hosts = [host for host in hosts if "think" in host.serves] or hosts
        room = {host.name: seconds * host.slots for host in hosts}
        shares = [self._held[name] / slots if slots else 0.0 for name, slots in room.items()]
        everything = fsum(room.values())
        done = self._statuses["done"]
        return WorkloadReport(
            runs=len(self._arrivals),
            done=done,
            partial=self._statuses["partial"],
            failed=self._statuses["failed"],
            cancelled=self._statuses["cancelled"],
            refused=self._refused,
            in_time=self._in_time,
            makespan=seconds,
            latency=Spread.of(self._latencies),
            turn=Spread.of(self._turns),
            wait=Spread.of(self._waits),
            throughput=done / seconds if seconds else 0.0,
            tokens_per_second=self._usage.completion / seconds if seconds else 0.0,
            utilisation=fsum(self._held[name] for name in room) / everything if everything else 0.0,
            busiest=max(shares),
            idlest=min(shares),
            usage=self._usage,
            prompt_computed=self.tokens.computed,
            prompt_unique=self.tokens.unique,
            steps=self._steps,
            attempts=len(self._waits),
            events=self.events,
            failure=self._failure,
        )
