"""What a plan will take before it runs, at most and likely, by simulation: for `plait plan --price`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from statistics import mean
from typing import Any

from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.interfaces import PlanningContext
from plait.core.lengths import SHARE, quantile
from plait.core.messages import pluralise
from plait.core.ops import ModelCall
from plait.core.plan import Plan, template
from plait.core.result import Failure, Price, Result, Usage
from plait.machine import SendOrder
from plait.runtime.client.config import Config
from plait.runtime.client.pricing import rates
from plait.runtime.journal.directory import entries, place
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.location import Database, Location
from plait.runtime.journal.recorded_actions import read
from plait.runtime.plugins.loader import Plugins

from .simulation.calibrate import RecordedAttempt, fit, recorded
from .simulation.engine_profile import EngineProfile, load_engine, named_model, profile_file
from .simulation.latency import Host, LatencyModel
from .simulation.simulator import SimReport, simulate

Lengths = dict[str, list[int]]
"""Tokens of the ended steps of a run, by template."""
Times = tuple[float, float, float]
"""The 10th, 50th and 90th percentile, in seconds."""
Length = Callable[[Job, ModelCall], int]
"""Returns the number of tokens that a model call generates."""
_DRAWS = 40
"""Simulations of a plan."""
_PARTS = ("p10", "p50", "p90")
_RECENT_RUNS, _RECENT_JOURNALS = 50, 20
_TOKENS_PER_SECOND = 400.0
"""Pace of an assumed engine, for prices by the hour."""


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


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted usage of a request."""

    at_most: Usage
    """With every step as long as it may be, and none tried again."""
    likely: Usage
    recorded: int
    """Number of recorded steps behind `likely`."""
    open: int
    """Steps that may expand into others, which are in neither figure."""
    priced: bool
    time: Forecast
    """Until the end, on one engine with nothing else to do."""

    def plain(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {
            **{name: self._figures(usage) for name, usage in (("at_most", self.at_most), ("likely", self.likely))},
            "recorded_steps": self.recorded,
            "steps_that_may_expand": self.open,
            **{
                name: dict(zip(_PARTS, times, strict=True))
                for name, times in (("seconds", self.time.seconds), ("first_seconds", self.time.first))
                if times is not None
            },
            "seconds_by": self.time.why,
        }

    def _figures(self, usage: Usage) -> dict[str, Any]:
        cost = {"cost": usage.cost} if self.priced else {}
        return {"prompt_tokens": usage.prompt, "tokens": usage.completion, **cost}

    def lines(self) -> list[str]:
        """Return the estimate as lines of text."""
        stands = (
            f"by {self.recorded} recorded steps" if self.recorded else f"{SHARE:.0%} of what each step may generate"
        )
        lines = [f"at most {self._said(self.at_most)}", f"likely  {self._said(self.likely)} ({stands})"]
        lines += self.time.lines()
        if self.open:
            lines.append(f"{self.open} of the steps may expand into more, which is not counted: a budget limits it")
        if not self.priced:
            lines.append("no price is known: put one into the settings ([prices.default] input=…, output=…)")
        return lines

    def _said(self, usage: Usage) -> str:
        cost = f", cost {usage.cost:.6g}" if self.priced else ""
        return f"{usage.completion} tokens generated, about {usage.prompt} in prompts{cost}"


@dataclass(frozen=True, slots=True)
class _Past:
    """The newest recorded runs of a planner."""

    runs: list[Lengths] = field(default_factory=list[Lengths])
    attempts: list[RecordedAttempt] = field(default_factory=list[RecordedAttempt])
    aborts: list[float] = field(default_factory=list[float])


def forecast(plan: Plan, brief: PlanningContext, config: Config) -> Estimate:
    """Estimate the usage and the duration of a plan under its request's budget."""
    past, price = _past(config, brief.request.planner.name), rates(config).get("")
    lengths: Lengths = {}
    for run in past.runs:
        for name, tokens in run.items():
            lengths.setdefault(name, []).extend(tokens)

    def likely(job: Job, op: ModelCall) -> int:
        known = lengths.get(template(job.step))
        return round(mean(known)) if known else round(SHARE * op.sampling.max_tokens)

    names = {template(step.name) for step in plan.steps if step.op.kind == "think"}
    return Estimate(
        usage_of(plan, brief, lambda job, op: op.sampling.max_tokens, price),
        usage_of(plan, brief, likely, price),
        sum(len(tokens) for name, tokens in lengths.items() if name in names),
        sum(step.expands for step in plan.steps),
        price is not None,
        _forecast_time(plan, brief, config, past),
    )


def usage_of(plan: Plan, brief: PlanningContext, length: Length, price: Price | None = None) -> Usage:
    """Return the usage of a plan whose model calls have given lengths. Its time limit does not count: the pace of the
    engine is not known."""
    limits = brief.request.budget.model_copy(update={"seconds": None})
    brief = replace(brief, request=brief.request.model_copy(update={"budget": limits}))
    host = Host("host", max(64, len(plan.steps)), prefill_rate=1e9, decode_rate=_TOKENS_PER_SECOND, price=price)

    latency = LatencyModel(call=0.0, abort_latency=0.0)
    return _played(plan, brief, host, latency, lambda job, op, rng: length(job, op), 0).usage


def _past(config: Config, planner: str) -> _Past:
    """Read the newest runs of a planner. A journal that cannot be read is skipped."""
    past = _Past()
    for number, (path, runs) in enumerate(_recent_runs(config, planner).items()):
        try:
            past.runs.extend(_run_lengths(path, runs))
            attempts, aborts = recorded(path, runs)
        except (ConfigError, ValueError, KeyError, TypeError, AttributeError):
            continue
        # workers of two journals are two workers: their times have nothing to do with one another
        past.attempts.extend(replace(attempt, worker=f"{number}:{attempt.worker}") for attempt in attempts)
        past.aborts.extend(aborts)
    return past


def _recent_runs(config: Config, planner: str) -> dict[Location, set[str]]:
    """Return the ids of the newest recorded runs of a planner, by journal."""
    where = place(config)
    recent: dict[Location, set[str]] = {}
    if config.journal != "off" and (isinstance(where, Database) or where.exists()):
        count = 0
        for entry in entries(where, []):
            # The newest runs say most of the next one, and a folder may hold thousands of journals.
            if count >= _RECENT_RUNS or len(recent) >= _RECENT_JOURNALS:
                break
            if entry.planner == planner:
                recent.setdefault(entry.path, set()).add(entry.run)
                count += 1
    return recent


def _run_lengths(path: Location, runs: set[str]) -> list[Lengths]:
    """Return the lengths of the steps of some runs in a journal, one mapping a run."""
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


def _forecast_time(plan: Plan, brief: PlanningContext, config: Config, past: _Past) -> Forecast:
    """Forecast the duration of a plan. Each of some simulations draws its lengths from one recorded run, since the
    branches of a run are more like one another than those of several; the pace is that of the model's profile, or is
    fitted to these runs where the model is not calibrated."""
    profile, paced = _profile(named_model(config, brief.request.task.name), past)
    if profile is None:
        return Forecast(paced)
    drawn = f"by {pluralise(len(past.runs), 'recorded run')}" if past.runs else "by the lengths in the profile"
    reports = [_drawn(plan, brief, profile, past.runs, seed) for seed in range(_DRAWS)]
    firsts = [
        min(ends)
        for report in reports
        if (ends := [span.end for span in report.spans if span.kind == "think" and span.end_in == "done"])
    ]
    # With one call at the start its end says nothing that the whole does not.
    several = sum(step.op.kind == "think" and not step.needs for step in plan.steps) > 1
    whole = _times([report.makespan for report in reports])
    return Forecast(f"{drawn}, {paced}", whole, _times(firsts) if several and firsts else None)


def _profile(model: str, past: _Past) -> tuple[EngineProfile | None, str]:
    """Return how fast the model is, and where that is from; without it, why it is not known."""
    path = profile_file(model)
    if path.exists():
        return load_engine(path), "calibrated"
    remedy = "`plait simulate calibrate --probe` measures it"
    if not past.runs:
        return None, f"no run of this planner is recorded and the model is uncalibrated; {remedy}"
    try:
        return fit(past.attempts, past.aborts, model=model), "at their pace"
    except ConfigError as error:
        return None, f"the model is uncalibrated, and {error}; {remedy}"


def _drawn(plan: Plan, brief: PlanningContext, profile: EngineProfile, runs: list[Lengths], seed: int) -> SimReport:
    own: Mapping[str, list[int]] = runs[seed % len(runs)] if runs else {}
    others = profile.outcome()

    def tokens(job: Job, op: ModelCall, rng: Random) -> int:
        lengths = own.get(template(job.step))
        made: Any = None if lengths else others(job, rng)
        return rng.choice(lengths) if lengths else made.usage.completion

    host = profile.host("host", slots=max(64, len(plan.steps)))
    return _played(plan, brief, host, profile.latency(), tokens, seed)


def _played(
    plan: Plan,
    brief: PlanningContext,
    host: Host,
    latency: LatencyModel,
    tokens: Callable[[Job, ModelCall, Random], int],
    seed: int,
) -> SimReport:
    def outcome(job: Job, rng: Random) -> Result | Failure:
        if not isinstance(job.op, ModelCall):
            return Result(value=None)
        usage = Usage(completion=min(tokens(job, job.op, rng), job.op.sampling.max_tokens))
        return Result(value=job.step, usage=usage)  # unlike the others', so that no vote ends early

    return simulate(
        brief.request,
        plan=None if plan.output is None else plan,  # a flow's first steps: it adds the others while it runs
        hosts=[host],
        latency=latency,
        outcome=outcome,
        tools=brief.tools,
        plugins=Plugins(),
        seed=seed,
    )


def _times(values: list[float]) -> Times:
    low, middle, high = (round(quantile(values, share), 4) for share in (0.1, 0.5, 0.9))
    return low, middle, high
