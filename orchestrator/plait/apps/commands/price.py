"""What a request would take before anything runs: at most, and likely. For `plait plan --price`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ...core.errors import ConfigError
from ...core.events import Job
from ...core.interfaces import PlanningContext
from ...core.lengths import SHARE
from ...core.ops import ModelCall
from ...core.plan import Plan, template
from ...core.result import Usage
from ...machine import SendOrder
from ...runtime.client.config import Config
from ...runtime.client.dry_run import dry_run
from ...runtime.client.pricing import rates
from ...runtime.journal.directory import entries, place
from ...runtime.journal.journal import Journal
from ...runtime.journal.location import Database, Location
from ...runtime.journal.recorded_actions import read

Lengths = dict[str, list[int]]
"""Tokens of the ended steps of a run, by template."""
Times = tuple[float, float, float]
"""The 10th, 50th and 90th percentile, in seconds."""
UNREADABLE = (ConfigError, ValueError, KeyError, TypeError, AttributeError)
"""Exceptions of a journal that cannot be read."""
_PARTS = ("p10", "p50", "p90")
_RECENT_RUNS, _RECENT_JOURNALS = 50, 20
_NO_FORECAST = "plait-research, which forecasts it, is not installed: pip install 'plait[research]'"


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
    """What a request would take."""

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


def estimate(
    plan: Plan,
    brief: PlanningContext,
    config: Config,
    forecast: Callable[[Plan, PlanningContext, Config], Forecast] | None,
) -> Estimate:
    """Estimate the usage of a plan under its request's budget. Prompts count one token per four characters."""
    request = brief.request
    price = rates(config).get("")
    known = _mean_lengths(config, request.planner.name)

    def played(length: Callable[[Job, ModelCall], int]) -> Usage:
        whole = None if plan.output is None else plan  # a flow's first steps: it adds the others while it runs
        return dry_run(request, whole, length, tools=brief.tools, price=price)

    def likely(job: Job, op: ModelCall) -> int:
        return known.get(template(job.step), (round(SHARE * op.sampling.max_tokens), 0))[0]

    names = {template(step.name) for step in plan.steps if step.op.kind == "think"}
    return Estimate(
        played(lambda job, op: op.sampling.max_tokens),
        played(likely),
        sum(count for name, (_, count) in known.items() if name in names),
        sum(step.expands for step in plan.steps),
        price is not None,
        Forecast(_NO_FORECAST) if forecast is None else forecast(plan, brief, config),
    )


def recent_runs(config: Config, planner: str) -> dict[Location, set[str]]:
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


def run_lengths(path: Location, runs: set[str]) -> list[Lengths]:
    """Return the lengths of the steps of some runs in a journal, one mapping a run. Raises one of `UNREADABLE`."""
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


def _mean_lengths(config: Config, planner: str) -> dict[str, tuple[int, int]]:
    """Return the mean tokens and the number of the recorded steps of a planner, by template. A journal that cannot be
    read is skipped."""
    lengths: Lengths = {}
    for path, runs in recent_runs(config, planner).items():
        try:
            by_run = run_lengths(path, runs)
        except UNREADABLE:
            continue
        for run in by_run:
            for name, tokens in run.items():
                lengths.setdefault(name, []).extend(tokens)
    return {name: (round(mean(tokens)), len(tokens)) for name, tokens in lengths.items()}
