"""Which calls of a plan must not be made twice, as the tools themselves say. Knows no planner and no worker."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.plan import Call, Plan, Step
from ...core.tools.tool import ToolSpec


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
