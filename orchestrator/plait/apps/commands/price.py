"""What a request would take before anything runs: at most, and likely. For `plait plan --price`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import Any

from ...core.events import Job
from ...core.interfaces import PlanningContext
from ...core.lengths import SHARE
from ...core.ops import ModelCall
from ...core.plan import Plan, template
from ...core.result import Failure, Result, Usage
from ...runtime.client.config import Config
from ...runtime.client.pricing import rates
from ...runtime.plugins.loader import Plugins
from ...runtime.simulation.simulator import Host, simulate
from .forecast import Forecast, Past, forecast, past

__all__ = ["Estimate", "estimate", "lengths"]

_PARTS = ("p10", "p50", "p90")


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


def estimate(plan: Plan, brief: PlanningContext, config: Config) -> Estimate:
    """Estimate the usage of a plan under its request's budget. Prompts count one token per four characters."""
    request = brief.request
    price = rates(config).get("")
    recorded = past(config, request.planner.name)
    known = lengths(recorded)

    def played(length: Callable[[Job, ModelCall], int]) -> Usage:
        def outcome(job: Job, rng: Random) -> Result | Failure:
            if not isinstance(job.op, ModelCall):
                return Result(value=None)
            tokens = max(1, min(length(job, job.op), job.op.sampling.max_tokens))
            text = f"{job.step} ".ljust(4 * tokens, "x")[: 4 * tokens]  # unlike the others', so that no vote ends early
            return Result(value=text, usage=Usage(completion=tokens))

        host = Host("host", slots=max(64, len(plan.steps)), price=price)
        whole = None if plan.output is None else plan  # a flow's first steps: it adds the others while it runs
        return simulate(request, plan=whole, hosts=[host], outcome=outcome, tools=brief.tools, plugins=Plugins()).usage

    def likely(job: Job, op: ModelCall) -> int:
        return known.get(template(job.step), (round(SHARE * op.sampling.max_tokens), 0))[0]

    names = {template(step.name) for step in plan.steps if step.op.kind == "think"}
    return Estimate(
        played(lambda job, op: op.sampling.max_tokens),
        played(likely),
        sum(count for name, (_, count) in known.items() if name in names),
        sum(step.expands for step in plan.steps),
        price is not None,
        forecast(plan, brief, config, recorded),
    )


def lengths(known: Past) -> dict[str, tuple[int, int]]:
    """Return the mean tokens and the number of the recorded steps of a planner, by their names without numbers."""
    return {name: (round(mean(tokens)), len(tokens)) for name, tokens in known.lengths().items()}
