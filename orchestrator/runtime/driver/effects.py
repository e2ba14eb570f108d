"""What a plan's steps get from elsewhere: from the tools, which calls must not be made twice; from the request, which
model answers, and with whom cached prefixes are shared. Knows no planner and no worker."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.interfaces import Brief
from ...core.plan import Call, Plan, Request, Step, Think
from ...core.tools.tool import ToolSpec


def revised(plan: Plan, brief: Brief) -> Plan:
    """Return a plan with all that the tools and the request of its run say of its steps."""
    return marked(with_defaults(plan, brief.request), brief.tools)


def with_defaults(plan: Plan, request: Request) -> Plan:
    """Return a plan in which the model calls that name no model, or no salt, have those of the request."""
    if request.model is None and not request.salt:
        return plan

    def completed(step: Step) -> Step:
        op = step.op
        if not isinstance(op, Think):
            return step
        update = {"model": op.model or request.model, "salt": op.salt or request.salt}
        return step.model_copy(update={"op": op.model_copy(update=update)})

    return plan.model_copy(update={"steps": tuple(map(completed, plan.steps))})


def marked(plan: Plan, tools: Iterable[ToolSpec]) -> Plan:
    """Return a plan in which the steps that call a tool with side effects say so, unless the tool is idempotent.

    Whoever planned may have left that out, or not have been told; a step that calls no such tool keeps what it says.
    """
    effects = {spec.name: spec.once for spec in tools if spec.side_effects}
    if not effects or all(_as_it_should_be(step, effects) for step in plan.steps):
        return plan
    steps = tuple(
        step if _as_it_should_be(step, effects) else step.model_copy(update={"side_effects": not step.side_effects})
        for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def _as_it_should_be(step: Step, effects: dict[str, bool]) -> bool:
    return not isinstance(step.op, Call) or effects.get(step.op.tool, step.side_effects) == step.side_effects
