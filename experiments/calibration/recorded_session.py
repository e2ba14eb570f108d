"""Recorded runs to simulate again with a profile: what they were, when they came, and what their steps generated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue, PrivateAttr

from plait.core.errors import ConfigError
from plait.core.events import Expanded, Job, Submitted, event_adapter
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.values import Frozen
from plait.machine import SendOrder
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.recorded_actions import read
from plait_research.simulation.calibrate import Clock
from plait_research.simulation.engine_profile import EngineProfile
from plait_research.simulation.workload import Spread, WorkloadReport, simulate_workload

SOON = 0.05
"""Maximum number of seconds between a run's end and a run that follows it."""


def _same(at: float) -> float:
    return at


class RecordedSession(Frozen):
    """A journal's recorded runs, for a new simulation."""

    requests: tuple[Request, ...]
    plans: tuple[Plan, ...]
    arrivals: tuple[float, ...]
    latencies: tuple[float, ...]
    """Duration of each run in seconds."""
    lengths: dict[str, int]
    """Tokens by `run-N:step`; N is the run's number by arrival."""
    prompts: dict[str, tuple[int, int]]
    """Tokens of the prompt and cached tokens of the prompt, by `run-N:step`."""
    values: dict[str, JsonValue]
    """The step's value, by `run-N:step`. It decides when a join closes early."""
    slots: dict[str, int]
    """Number of slots of each worker that had model steps."""
    makespan: float
    patches: tuple[dict[str, tuple[Plan, ...]], ...] = ()
    """For each run, the expansions of its steps by the step's name, in order."""

    def follows(self) -> dict[int, tuple[int, float]]:
        """Return the runs that were sent because another run had ended; they would have come later if it had ended
        later. The mapping has for each run's number the other run's number and the seconds between them."""
        followed: dict[int, tuple[int, float]] = {}
        ends = sorted(
            (at + took, number) for number, (at, took) in enumerate(zip(self.arrivals, self.latencies, strict=True))
        )
        free = dict.fromkeys(number for _, number in ends)
        for number, at in enumerate(self.arrivals):
            for end, other in ends:
                if other in free and other < number and at - SOON <= end <= at:
                    followed[number] = other, at - end
                    del free[other]
                    break
        return followed

    def planners(self) -> list[Planner]:
        """Return a planner for each run, which repeats the recorded plans."""
        return [_Again(plan=plan, patches=patches) for plan, patches in zip(self.plans, self.patches, strict=True)]

    @classmethod
    def read(cls, path: Path, runs: Collection[str] | None = None, clock: Clock = _same) -> RecordedSession:
        """Read a journal, or some of its runs. Raises `ConfigError` if none of them has ended."""
        came: dict[str, Submitted] = {}
        over: dict[str, float] = {}
        begun: dict[int, tuple[str, str]] = {}
        used: dict[str, Usage] = {}
        said_by: dict[str, JsonValue] = {}
        offered: dict[str, int] = {}
        slots: dict[str, int] = {}
        expanded: dict[str, dict[str, list[Plan]]] = {}
        for row in Journal(path).rows():
            event: dict[str, Any] = json.loads(row.event)
            if row.kind in ("submitted", "expanded"):
                content = event_adapter.validate_python(event)
                if isinstance(content, Submitted):
                    came[content.run] = content
                elif isinstance(content, Expanded):
                    run, _, name = content.step.partition(":")
                    patches = expanded.setdefault(run, {}).setdefault(name.rpartition("/")[2], [])
                    patches += [content.patch] if content.patch is not None else []
            elif row.kind == "succeeded" and event["attempt"] in begun:
                step, result = begun[event["attempt"]][0], event["result"]
                used[step] = Usage.model_validate(result.get("usage", {}))
                said_by[step] = result.get("value")
            elif row.kind == "worker-up":
                offered[event["worker"]] = max(1, event["slots"])
            done = read(row.actions)
            for order, _ in done.orders:
                if isinstance(order, SendOrder):
                    begun[order.attempt] = order.step, order.worker
            for run, _ in done.ended:
                over[run] = clock(float(event["at"]))
        wanted = [came_run for run, came_run in came.items() if run in over and (runs is None or run in runs)]
        whole = sorted(wanted, key=lambda submitted: submitted.at)
        if not whole:
            raise ConfigError(f"{path} has no run that ended: nothing can be compared")
        number = {submitted.run: f"run-{i}" for i, submitted in enumerate(whole)}
        named = {
            step: f"{number[run]}:{name}" for step in used for run, _, name in [step.partition(":")] if run in number
        }
        for step, worker in begun.values():
            if step.partition(":")[0] in number and used.get(step, Usage()).completion:
                slots[worker] = offered.get(worker, 1)
        came_at = {submitted.run: clock(submitted.at) for submitted in whole}
        start = came_at[whole[0].run]
        return cls(
            requests=tuple(submitted.request for submitted in whole),
            plans=tuple(submitted.plan for submitted in whole),
            arrivals=tuple(came_at[submitted.run] - start for submitted in whole),
            latencies=tuple(over[submitted.run] - came_at[submitted.run] for submitted in whole),
            lengths={name: used[step].completion for step, name in named.items()},
            prompts={name: (used[step].prompt, used[step].cached) for step, name in named.items()},
            values={name: said_by[step] for step, name in named.items()},
            slots=slots,
            makespan=max(over[submitted.run] for submitted in whole) - start,
            patches=tuple(
                {name: tuple(patches) for name, patches in expanded.get(submitted.run, {}).items()}
                for submitted in whole
            ),
        )


class _Again(Planner):
    """Repeats a planner's output in a recorded run. Steps with equal names in several scopes are served in order."""

    plan: Plan
    patches: dict[str, tuple[Plan, ...]] = {}
    _taken: Counter[str] = PrivateAttr(default_factory=Counter[str])

    def start(self, brief: PlanningContext) -> Plan:
        return self.plan

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        number = self._taken[step.name]
        self._taken[step.name] += 1
        return _Patch(self.patches.get(step.name, ())[number : number + 1])


class _Patch:
    """Gives a recorded patch when its step has ended."""

    def __init__(self, patches: Sequence[Plan]) -> None:
        self._patches = patches

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return next(iter(self._patches), None)


def compared(
    path: Path, profile: EngineProfile, runs: Collection[str] | None = None, *, clock: Clock | None = None
) -> dict[str, Any]:
    """Simulate the runs of a journal (or some of them) with the lengths that they had, and compare. `clock`: the
    profile's time by the journal's, where they differ."""
    session = RecordedSession.read(path, runs) if clock is None else RecordedSession.read(path, runs, clock)
    report = _again(session, profile)
    measured = Spread.of(session.latencies)
    return {
        "runs": len(session.latencies),
        "makespan_seconds": round(session.makespan, 4),
        "simulated_makespan_seconds": round(report.makespan, 4),
        "makespan_error": round(report.makespan / session.makespan - 1.0, 4) if session.makespan else None,
        "p99_seconds": round(measured.p99, 4),
        "simulated_p99_seconds": round(report.latency.p99, 4),
        "p99_error": round(report.latency.p99 / measured.p99 - 1.0, 4) if measured.p99 else None,
    }


def _again(session: RecordedSession, profile: EngineProfile) -> WorkloadReport:
    hosts = [profile.host(name, slots) for name, slots in sorted(session.slots.items())]

    def outcome(job: Job, rng: Any) -> Result | Failure:
        if isinstance(job.op, ToolCall):
            return Result()
        length = session.lengths.get(job.step, job.op.sampling.max_tokens)
        prompt, cached = session.prompts.get(job.step, (0, 0))
        value = session.values.get(job.step, "")
        return Result(value=value, usage=Usage(prompt=prompt, cached=cached, completion=max(1, length)))

    return simulate_workload(
        session.requests,
        session.arrivals,
        planner=session.planners(),
        after=session.follows(),
        hosts=hosts,
        latency=profile.latency(),
        outcome=outcome,
    )
