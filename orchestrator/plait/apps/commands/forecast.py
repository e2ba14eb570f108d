"""How long a plan will take, by recorded runs of its planner: for `plait plan --price`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ...core.errors import ConfigError
from ...core.events import Job
from ...core.interfaces import PlanningContext
from ...core.lengths import quantile
from ...core.messages import counted
from ...core.ops import ModelCall
from ...core.plan import Plan, template
from ...core.result import Failure, Result, Usage
from ...machine import SendOrder
from ...runtime.client.config import Config
from ...runtime.journal.directory import entries, place
from ...runtime.journal.journal import Journal
from ...runtime.journal.location import Database, Location
from ...runtime.journal.recorded import read
from ...runtime.plugins.loader import Plugins
from ...runtime.simulation.calibrate import RecordedAttempt, fit, recorded
from ...runtime.simulation.profile import Profile, load, profile_file
from ...runtime.simulation.simulator import SimReport, simulate

__all__ = ["Forecast", "Past", "Times", "forecast", "past"]

Lengths = dict[str, list[int]]
"""Tokens of steps that ended, by template."""
Times = tuple[float, float, float]
"""The 10th, 50th and 90th of 100, in seconds."""
_RUNS, _FILES = 50, 20
"""The newest runs of a planner, and the newest journals, that are looked at."""
_DRAWS = 40
"""Simulations of a plan."""


@dataclass(frozen=True, slots=True)
class Past:
    """The newest recorded runs of a planner."""

    runs: list[Lengths] = field(default_factory=list[Lengths])
    attempts: list[RecordedAttempt] = field(default_factory=list[RecordedAttempt])
    aborts: list[float] = field(default_factory=list[float])

    def lengths(self) -> Lengths:
        """Return the lengths of all runs."""
        lengths: Lengths = {}
        for run in self.runs:
            for name, tokens in run.items():
                lengths.setdefault(name, []).extend(tokens)
        return lengths


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long a plan takes on one engine with nothing else to do."""

    why: str
    """The basis of the forecast; without seconds, the reason why they are missing."""
    seconds: Times | None = None
    """Until the end."""
    first: Times | None = None
    """Until the first model step ends, where several run at once."""

    def lines(self) -> list[str]:
        """Return the forecast as lines of text."""
        if self.seconds is None:
            return [f"how long it takes is not known: {self.why}"]
        low, middle, high = self.seconds
        lines = [f"takes   {middle:.3g} s, eight times in ten {low:.3g} to {high:.3g} s ({self.why})"]
        if self.first is not None:
            low, middle, high = self.first
            lines.append(f"first   answer after {middle:.3g} s, eight times in ten {low:.3g} to {high:.3g} s")
        return lines


def past(config: Config, planner: str) -> Past:
    """Read the newest runs of a planner. A journal that cannot be read is passed over."""
    where = place(config)
    wanted: dict[Location, set[str]] = {}
    if config.journal != "off" and (isinstance(where, Database) or where.exists()):
        runs = 0
        for entry in entries(where, []):
            # The newest runs say most of the next one, and a folder may hold thousands of journals.
            if runs >= _RUNS or len(wanted) >= _FILES:
                break
            if entry.planner == planner:
                wanted.setdefault(entry.path, set()).add(entry.run)
                runs += 1
    record = Past()
    for number, (path, there) in enumerate(wanted.items()):
        try:
            lengths = _lengths(path, there)
            attempts, aborts = recorded(path, there)
        except (ConfigError, ValueError, KeyError, TypeError, AttributeError):
            continue
        record.runs.extend(lengths)
        # workers of two journals are two workers: their times have nothing to do with one another
        record.attempts.extend(replace(attempt, worker=f"{number}:{attempt.worker}") for attempt in attempts)
        record.aborts.extend(aborts)
    return record


def _lengths(path: Location, runs: set[str]) -> list[Lengths]:
    """Return the lengths of the steps of each of some runs."""
    steps: dict[int, str] = {}
    by_run: dict[str, Lengths] = {}
    for row in Journal(path).rows():
        if row.kind == "succeeded" and row.run in runs:
            event = json.loads(row.event)
            tokens = event["result"]["usage"]["completion"]
            if event["attempt"] in steps and isinstance(tokens, int) and tokens > 0:
                by_run.setdefault(row.run, {}).setdefault(steps[event["attempt"]], []).append(tokens)
        for order, run in read(row.actions).orders:
            if isinstance(order, SendOrder) and run in runs:
                steps[order.attempt] = template(order.step)
    return list(by_run.values())


def forecast(plan: Plan, brief: PlanningContext, config: Config, known: Past) -> Forecast:
    """Forecast the duration of a plan. Each of some simulations draws its lengths from one recorded run, since the
    branches of a run are more like one another than those of several; the pace is that of the model's profile, or is
    fitted to these runs where the model is not calibrated."""
    profile, paced = _profile(config, known)
    if profile is None:
        return Forecast(paced)
    drawn = f"by {counted(len(known.runs), 'recorded run')}" if known.runs else "by the lengths in the profile"
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


def _profile(config: Config, known: Past) -> tuple[Profile | None, str]:
    """Return how fast the model is, and where that is from; without it, why it is not known."""
    path = profile_file(config.model)
    if path.exists():
        return load(path), "calibrated"
    remedy = "`plait simulate calibrate --probe` measures it"
    if not known.runs:
        return None, f"no run of this planner is recorded and the model is uncalibrated; {remedy}"
    try:
        return fit(known.attempts, known.aborts, model=config.model), "at their pace"
    except ConfigError as error:
        return None, f"the model is uncalibrated, and {error}; {remedy}"


def _played(plan: Plan, brief: PlanningContext, profile: Profile, runs: list[Lengths], seed: int) -> SimReport:
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
