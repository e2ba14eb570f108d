"""Runs a request through tiers: planners in the order in which they are to be tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue, TypeAdapter

from plait.core.errors import PluginError
from plait.core.flow import Flow, flow_step
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.routing import Tier
from plait.core.view import Branch

from ..._shared.steps import OnResult, through

__all__ = ["mark_owner", "tier_name", "tier_plan", "tier_reader"]

_specs = TypeAdapter(list[Plugin])


def tier_plan(brief: PlanningContext, left: Sequence[Plugin], why: str, *, read: bool = False) -> Plan:
    """Return the plan of the first of several planners, with a check of its answer where others are left, or where the
    answer is to be read (`read`)."""
    tier, *rest = left
    planner = _build_planner(brief, tier)
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


def tier_reader(
    step: Step, brief: PlanningContext, after: Callable[[PlanningContext, Result], Plan | None]
) -> Reader | None:
    """Return the reader of a step that belongs to a tier: the check of an answer, what follows `after` one that is
    read, or the tier's own reader of its step; `None` for other steps."""
    match step.state:
        case {"read": str()}:
            return OnResult(lambda result: after(brief, result))
        case {"next": list() as left, "said": str() as why}:
            return OnResult(lambda result: _read_check(brief, result, _specs.validate_python(left), why))
        case {"tier": dict() as spec, "state": state}:
            tier = Plugin.model_validate(spec)
            reader = _build_planner(brief, tier).reader(step.model_copy(update={"state": state}), brief)
            return OfTier(reader, tier) if not hasattr(reader, "merged") else OfTiersJoin(reader, tier)
        case _:
            return None


def tier_name(tier: Tier) -> str:
    """Return a tier's planner as it is written on a command line."""
    options = ",".join(f"{key}={value}" for key, value in tier.planner.options.items())
    return f"{tier.planner.name}:{options}" if options else tier.planner.name


def mark_owner(plan: Plan, tier: Plugin) -> Plan:
    """Return a tier's plan in which the steps that expand say whose they are."""
    owner = tier.model_dump(mode="json")
    steps = [
        step.model_copy(update={"state": {"tier": owner, "state": step.state}}) if step.expands else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": tuple(steps)})


def _read_check(brief: PlanningContext, result: Result, left: Sequence[Plugin], why: str) -> Plan | None:
    """Return nothing if an answer is right, else the plan of the next tier."""
    value = result.value
    answer = value if result.extracted or not isinstance(value, str) else brief.task.extract(value)
    right = answer is not None and brief.task.verify(answer)
    return None if right else tier_plan(brief, left, why)


def _build_planner(brief: PlanningContext, spec: Plugin) -> Planner:
    made = brief.plugin("planner", spec)
    if not isinstance(made, Planner):
        raise PluginError(f"{spec.name!r} is no planner: a tier is one")
    return made


class OfTier:
    """Reads a step of a tier with the tier's own reader."""

    def __init__(self, reader: Reader, tier: Plugin) -> None:
        self.reader, self.tier = reader, tier

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return the reader's patches."""
        return [mark_owner(patch, self.tier) for patch in self.reader.feed(delta)]

    def close(self, result: Result) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.close(result)
        return None if made is None else mark_owner(made, self.tier)


class OfTiersJoin(OfTier):
    """The same for a join whose branches are read."""

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.merged(result, branches)  # type: ignore[attr-defined]
        return None if made is None else mark_owner(made, self.tier)
