"""Refuses policies that judge branches while they are written where the branches do not stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ...core.errors import PlanError, UsageError
from ...core.interfaces import Merge, Planner, Policy
from ...core.ops import Join, Plugin, Think
from ...core.plan import Plan
from ..plugins.loader import Plugins


def check_planner(planner: Plugin, made: Planner, policies: Iterable[Plugin], plugins: Plugins) -> None:
    """Raise `UsageError` if a policy needs branches that stream and the planner's option `stream` is off."""
    if getattr(made, "stream", None) is False:
        for name in _that_need_it(policies, plugins):
            raise UsageError(
                f"the policy {name!r} compares branches while they are written, and those of {planner.name!r} do not "
                f"stream: write planner={planner.name}:stream=true, or leave the policy out"
            )


def check_plan(plan: Plan, policies: Iterable[Plugin], plugins: Plugins) -> None:
    """Raise `PlanError` if a policy needs branches that stream and a branch of one of the plan's votes does not."""
    needing = _that_need_it(policies, plugins)
    if not needing:
        return
    silent = {step.name for step in plan.steps if isinstance(step.op, Think) and not step.op.stream}
    for name in needing:
        for step in plan.steps:
            if not isinstance(step.op, Join) or silent.isdisjoint(step.needs):
                continue
            if cast("type[Merge]", plugins.class_of("merge", step.op.merge.name)).votes:
                branch = next(need for need in step.needs if need in silent)
                raise PlanError(
                    f"the policy {name!r} compares branches while they are written, and {branch!r} does not stream: "
                    "set stream=true for it, or leave the policy out"
                )


def _that_need_it(policies: Iterable[Plugin], plugins: Plugins) -> list[str]:
    return [spec.name for spec in policies if cast("type[Policy]", plugins.class_of("policy", spec.name)).needs_stream]
