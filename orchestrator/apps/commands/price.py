"""What a request would take before anything runs: at most, and likely. For `plait plan --price`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import Any

from ...core.errors import ConfigError
from ...core.events import Job
from ...core.interfaces import Brief
from ...core.lengths import SHARE, template
from ...core.ops import Think
from ...core.plan import Plan
from ...core.result import Failure, Result, Usage
from ...runtime.client.config import Config
from ...runtime.client.pricing import rates
from ...runtime.journal.directory import entries
from ...runtime.journal.journal import Journal
from ...runtime.journal.location import Database, Location
from ...runtime.journal.sessions import place
from ...runtime.plugins.loader import Plugins
from ...runtime.simulation.profile import load, profile_file
from ...runtime.simulation.simulator import Host, simulate

__all__ = ["Estimate", "estimate", "lengths"]

_PARTS = ("p10", "p50", "p90")
_DRAWS = 20
"""Simulations of the time that a plan takes."""
_RUNS, _FILES = 50, 5
"""The newest runs of a planner, and the newest journals, that are looked at."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request would take."""

    at_most: Usage
    """With every step as long as it may be, and none tried again."""
    likely: Usage
    recorded: int
    """Recorded steps that `likely` stands on."""
    open: int
    """Steps that may expand into others, which are in neither figure."""
    priced: bool
    seconds: tuple[float, float, float] | None = None
    """Until the end, on one engine with nothing else to do: the 10th, 50th and 90th of 100, by the profile of the model
    on this machine. `None` without a profile."""

    def plain(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {
            **{name: self._figures(usage) for name, usage in (("at_most", self.at_most), ("likely", self.likely))},
            "recorded_steps": self.recorded,
            "steps_that_may_expand": self.open,
            **({} if self.seconds is None else {"seconds": dict(zip(_PARTS, self.seconds, strict=True))}),
        }

    def _figures(self, usage: Usage) -> dict[str, Any]:
        cost = {"cost": usage.cost} if self.priced else {}
        return {"prompt_tokens": usage.prompt, "tokens": usage.completion, **cost}

    def lines(self) -> list[str]:
        """Return it in words."""
        stands = (
            f"by {self.recorded} recorded steps" if self.recorded else f"{SHARE:.0%} of what each step may generate"
        )
        lines = [f"at most {self._said(self.at_most)}", f"likely  {self._said(self.likely)} ({stands})"]
        if self.seconds is not None:
            low, middle, high = self.seconds
            lines.append(f"takes   {middle:.3g} s, eight times in ten {low:.3g} to {high:.3g} s (by `plait calibrate`)")
        if self.open:
            lines.append(f"{self.open} of the steps may expand into more, which is not counted: a budget limits it")
        if not self.priced:
            lines.append("no price is known: put one into the settings ([prices.default] input=…, output=…)")
        return lines

    def _said(self, usage: Usage) -> str:
        cost = f", cost {usage.cost:.6g}" if self.priced else ""
        return f"{usage.completion} tokens generated, about {usage.prompt} in prompts{cost}"


def estimate(plan: Plan, brief: Brief, config: Config) -> Estimate:
    """Return what a plan would take under its request's budget. Prompts are a token for four characters."""
    request = brief.request
    price = rates(config).get("")
    known = lengths(config, request.planner.name)

    def played(length: Callable[[Job, Think], int]) -> Usage:
        def outcome(job: Job, rng: Random) -> Result | Failure:
            if not isinstance(job.op, Think):
                return Result(value=None)
            tokens = max(1, min(length(job, job.op), job.op.sampling.max_tokens))
            text = f"{job.step} ".ljust(4 * tokens, "x")[: 4 * tokens]  # unlike the others', so that no vote ends early
            return Result(value=text, usage=Usage(completion=tokens))

        host = Host("host", slots=max(64, len(plan.steps)), price=price)
        whole = None if plan.output is None else plan  # a flow's first steps: it says the others as it goes
        return simulate(request, plan=whole, hosts=[host], outcome=outcome, tools=brief.tools, plugins=Plugins()).usage

    def likely(job: Job, op: Think) -> int:
        return known.get(template(job.step), (round(SHARE * op.sampling.max_tokens), 0))[0]

    names = {template(step.name) for step in plan.steps if step.op.kind == "think"}
    return Estimate(
        played(lambda job, op: op.sampling.max_tokens),
        played(likely),
        sum(count for name, (_, count) in known.items() if name in names),
        sum(step.expands for step in plan.steps),
        price is not None,
        _seconds(plan, brief, config),
    )


def _seconds(plan: Plan, brief: Brief, config: Config) -> tuple[float, float, float] | None:
    """Return how long a plan takes, with lengths drawn from those of the model's profile."""
    path = profile_file(config.model)
    if not path.exists():
        return None
    profile = load(path)
    hosts = [profile.host("host", slots=max(64, len(plan.steps)))]
    whole = None if plan.output is None else plan
    took = sorted(
        simulate(
            brief.request,
            plan=whole,
            hosts=hosts,
            latency=profile.latency(),
            outcome=profile.outcome(),
            tools=brief.tools,
            plugins=Plugins(),
            seed=seed,
        ).makespan
        for seed in range(_DRAWS)
    )
    low, middle, high = (round(took[int(part * (_DRAWS - 1))], 4) for part in (0.1, 0.5, 0.9))
    return low, middle, high


def lengths(config: Config, planner: str) -> dict[str, tuple[int, int]]:
    """Return the mean tokens and the number of the recorded steps of a planner, by their names without numbers. A
    journal that cannot be read is passed over."""
    where = place(config)
    wanted: dict[Location, set[str]] = {}
    if config.journal != "off" and (isinstance(where, Database) or where.exists()):
        runs = 0
        for entry in entries(where, []):
            if runs >= _RUNS or len(wanted) >= _FILES:
                break
            if entry.planner == planner:
                wanted.setdefault(entry.path, set()).add(entry.run)
                runs += 1
    found: dict[str, list[int]] = {}
    for path, runs_there in wanted.items():
        try:
            _read(path, runs_there, found)
        except (ConfigError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {name: (round(mean(tokens)), len(tokens)) for name, tokens in found.items()}


def _read(path: Location, runs: set[str], found: dict[str, list[int]]) -> None:
    """Add the lengths of the steps of some runs."""
    steps: dict[int, str] = {}
    for row in Journal(path).rows():
        if row.kind == "succeeded" and row.run in runs:
            event = json.loads(row.event)
            tokens = event["result"]["usage"]["completion"]
            if event["attempt"] in steps and isinstance(tokens, int) and tokens > 0:
                found.setdefault(steps[event["attempt"]], []).append(tokens)
        for action in json.loads(row.actions or "[]"):
            if action["kind"] == "dispatch" and action["job"]["run"] in runs:
                steps[action["job"]["attempt"]] = template(action["job"]["step"])
