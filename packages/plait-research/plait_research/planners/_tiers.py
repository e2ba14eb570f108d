"""What the planners that choose among planners share: their candidates, and plans that try them in an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from plait.core.declarations import Free
from plait.core.flow import Flow, flow_step
from plait.core.interfaces import PlanningContext, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.planners._shared.delegation import build_planner, delegated_reader, mark_owner
from plait.planners._shared.steps import OnResult, through

from ..learning_planner import LearningPlanner
from ..route.ranking import MOST_TIERS, Tier, TierFit

_specs = TypeAdapter(list[Plugin])


Candidates = Annotated[tuple[Tier, ...], Field(min_length=1, max_length=MOST_TIERS)]
"""Planners to choose from, by name or with figures."""
Fit = Annotated[
    TierFit,
    Free(),
    Field(description="What a token costs; for features also their means, and which planners were right together."),
]


class TieredPlanner(LearningPlanner):
    """A planner that passes a request to one of several planners."""

    candidates: Candidates

    @model_validator(mode="after")
    def _ends(self) -> TieredPlanner:
        if any(tier.planner.name.startswith("route") for tier in self.candidates):
            raise ValueError("`candidates` must not contain a route: list its planners instead")
        return self

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the check of an answer, or the candidate's own reader of its step."""
        match step.state:
            case {"next": list() as left, "said": str() as why}:
                return OnResult(lambda result: _check_answer(brief, result, _specs.validate_python(left), why))
            case _:
                return delegated_reader(step, brief) or super().reader(step, brief)


def tier_plan(brief: PlanningContext, left: Sequence[Plugin], why: str, *, read: bool = False) -> Plan:
    """Return the plan of the first of several planners, with a check of its answer where others are left, or where the
    answer is to be read (`read`)."""
    tier, *rest = left
    planner = build_planner(brief, tier)
    if isinstance(planner, Flow):
        question = brief.request.text
        plan = Plan(steps=(flow_step(planner, question, "tier", label=tier.name),), output="tier")
    else:
        plan = mark_owner(planner.start(brief), tier)
    assert plan.output is not None
    names = {step.name for step in plan.steps}
    name = next(free for free in ("routed", "checked", "routed-2") if free not in names)
    goes_on = read or bool(rest)
    end = through(name, plan.output, f"{tier.name} answers; {why}", expands=goes_on, allow_failure=goes_on)
    state: JsonValue = {"next": [plugin.model_dump(mode="json") for plugin in rest], "said": why}
    end = end.model_copy(update={"label": tier.name, "state": {"read": why} if read else state if rest else None})
    return Plan(steps=(*plan.steps, end), output=name, budget=plan.budget)


def tier_name(tier: Tier) -> str:
    """Return a tier's planner as it is written on a command line."""
    options = ",".join(f"{key}={value}" for key, value in tier.planner.options.items())
    return f"{tier.planner.name}:{options}" if options else tier.planner.name


def _check_answer(brief: PlanningContext, result: Result, left: Sequence[Plugin], why: str) -> Plan | None:
    """Return `None` if an answer is right, else the plan of the next tier."""
    value = result.value
    answer = value if result.extracted or not isinstance(value, str) else brief.task.extract(value)
    right = answer is not None and brief.task.verify(answer)
    return None if right else tier_plan(brief, left, why)
