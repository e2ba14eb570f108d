"""How long a plan will take, by recorded runs of its planner: for `plait plan --price`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from plait.apps.commands.price import UNREADABLE, Forecast, Lengths, Times, recent_runs, run_lengths
from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.interfaces import PlanningContext
from plait.core.lengths import quantile
from plait.core.messages import pluralise
from plait.core.ops import ModelCall
from plait.core.plan import Plan, template
from plait.core.result import Failure, Result, Usage
from plait.runtime.client.config import Config
from plait.runtime.plugins.loader import Plugins

from .simulation.calibrate import RecordedAttempt, fit, recorded
from .simulation.engine_profile import EngineProfile, load_engine, named_model, profile_file
from .simulation.simulator import SimReport, simulate

_DRAWS = 40
"""Simulations of a plan."""


@dataclass(frozen=True, slots=True)
class _Past:
    """The newest recorded runs of a planner."""

    runs: list[Lengths] = field(default_factory=list[Lengths])
    attempts: list[RecordedAttempt] = field(default_factory=list[RecordedAttempt])
    aborts: list[float] = field(default_factory=list[float])


def _past(config: Config, planner: str) -> _Past:
    """Read the newest runs of a planner. A journal that cannot be read is skipped."""
    record = _Past()
    for number, (path, runs) in enumerate(recent_runs(config, planner).items()):
        try:
            lengths = run_lengths(path, runs)
            attempts, aborts = recorded(path, runs)
        except UNREADABLE:
            continue
        record.runs.extend(lengths)
        # workers of two journals are two workers: their times have nothing to do with one another
        record.attempts.extend(replace(attempt, worker=f"{number}:{attempt.worker}") for attempt in attempts)
        record.aborts.extend(aborts)
    return record


def forecast(plan: Plan, brief: PlanningContext, config: Config) -> Forecast:
    """Forecast the duration of a plan. Each of some simulations draws its lengths from one recorded run, since the
    branches of a run are more like one another than those of several; the pace is that of the model's profile, or is
    fitted to these runs where the model is not calibrated."""
    known = _past(config, brief.request.planner.name)
    profile, paced = _profile(named_model(config, brief.request.task.name), known)
    if profile is None:
        return Forecast(paced)
    drawn = f"by {pluralise(len(known.runs), 'recorded run')}" if known.runs else "by the lengths in the profile"
    reports = [_played(plan, brief, profile, known.runs, seed) for seed in range(_DRAWS)]
    firsts = [
        min(ends)
        for report in reports
        if (ends := [span.end for span in report.spans if span.kind == "think" and span.end_in == "done"])
    ]
    # With one call at the start its end says nothing that the whole does not.
    several = sum(step.op.kind == "think" and not step.needs for step in plan.steps) > 1
    whole = _times([report.makespan for report in reports])
    return Forecast(f"{drawn}, {paced}", whole, _times(firsts) if several and firsts else None)


def _profile(model: str, known: _Past) -> tuple[EngineProfile | None, str]:
    """Return how fast the model is, and where that is from; without it, why it is not known."""
    path = profile_file(model)
    if path.exists():
        return load_engine(path), "calibrated"
    remedy = "`plait simulate calibrate --probe` measures it"
    if not known.runs:
        return None, f"no run of this planner is recorded and the model is uncalibrated; {remedy}"
    try:
        return fit(known.attempts, known.aborts, model=model), "at their pace"
    except ConfigError as error:
        return None, f"the model is uncalibrated, and {error}; {remedy}"


def _played(plan: Plan, brief: PlanningContext, profile: EngineProfile, runs: list[Lengths], seed: int) -> SimReport:
    own: Mapping[str, list[int]] = runs[seed % len(runs)] if runs else {}
    others = profile.outcome()

    def outcome(job: Job, rng: Random) -> Result | Failure:
        if not isinstance(job.op, ModelCall):
            return Result(value=None)
        lengths = own.get(template(job.step))
        if lengths:
            usage = Usage(completion=min(rng.choice(lengths), job.op.sampling.max_tokens))
        else:
            made: Any = others(job, rng)
            usage = made.usage
        return Result(value=job.step, usage=usage)  # unlike the others', so that no vote ends early

    return simulate(
        brief.request,
        plan=None if plan.output is None else plan,
        hosts=[profile.host("host", slots=max(64, len(plan.steps)))],
        latency=profile.latency(),
        outcome=outcome,
        tools=brief.tools,
        plugins=Plugins(),
        seed=seed,
    )


def _times(values: list[float]) -> Times:
    low, middle, high = (round(quantile(values, share), 4) for share in (0.1, 0.5, 0.9))
    return low, middle, high
