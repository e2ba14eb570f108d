"""Plans of another planner inside a planner's own: their steps keep their planner, whose reader reads them."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.errors import PluginError
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.view import Branch


def build_planner(brief: PlanningContext, spec: Plugin) -> Planner:
    """Return the planner that a specification names. Raises `PluginError` for another kind of plugin."""
    made = brief.plugin("planner", spec)
    if not isinstance(made, Planner):
        raise PluginError(f"{spec.name!r} is not a planner")
    return made


def mark_owner(plan: Plan, owner: Plugin) -> Plan:
    """Return a planner's plan in which the steps that expand name their planner (`owner`)."""
    spec = owner.model_dump(mode="json")
    steps = [
        step.model_copy(update={"state": {"tier": spec, "state": step.state}}) if step.expands else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": tuple(steps)})


def delegated_reader(step: Step, brief: PlanningContext) -> Reader | None:
    """Return the owner's reader of a step that names its planner (`mark_owner`); `None` for other steps."""
    match step.state:
        case {"tier": dict() as spec, "state": state}:
            owner = Plugin.model_validate(spec)
            reader = build_planner(brief, owner).reader(step.model_copy(update={"state": state}), brief)
            return _OwnedReader(reader, owner) if not hasattr(reader, "merged") else _OwnedJoinReader(reader, owner)
        case _:
            return None


class _OwnedReader:
    """Reads a step with the reader of the planner that made the step."""

    def __init__(self, reader: Reader, owner: Plugin) -> None:
        self.reader, self.owner = reader, owner

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return the reader's patches."""
        return [mark_owner(patch, self.owner) for patch in self.reader.feed(delta)]

    def close(self, result: Result) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.close(result)
        return None if made is None else mark_owner(made, self.owner)


class _OwnedJoinReader(_OwnedReader):
    """Reads a join and its branches with the reader of the planner that made the join."""

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.merged(result, branches)  # type: ignore[attr-defined]
        return None if made is None else mark_owner(made, self.owner)
