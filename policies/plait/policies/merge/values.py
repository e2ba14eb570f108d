"""Merges that choose nothing: `collect`, `constant`, `observations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

__all__ = ["Collect", "Constant", "Observations"]


class Collect(Merge):
    """Return the list of the branches' values in the join's order, with `null` for a branch without a value."""

    plans_more = False
    collects = True

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the list; `why` names the missing branches."""
        values = [branch.result.value if branch.done and branch.result else None for branch in branches]
        missing = [f"{branch.name} {branch.state}" for branch in branches if not branch.done]
        why = f"{len(branches) - len(missing)} of {len(branches)} branches"
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            why += f"; missing: {shown}"
        return Verdict(value=values, why=why)


class Constant(Merge):
    """Return the value of its option and ignore the branches. Planners use it to put a value into a plan."""

    plans_more = False

    value: Annotated[JsonValue, Free()] = Field(default=None, description="The value.")
    why: FreeText = Field(default="", description="How it came about, for people.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="What a planner tells programs.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the value."""
        return Verdict(value=self.value, why=self.why, data=self.data)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return `True`: no branch can change the value."""
        return True


class Observations(Merge):
    """Return {"text": …, "results": {step: {"value": …} or {"error": …}}} in the order of the branches, not of their
    ends. A failed call is an observation; use this merge in a join that tolerates failures."""

    plans_more = False

    written: FreeText = Field(default="", description="What the model wrote.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="What a planner tells programs.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the record."""
        results: dict[str, JsonValue] = {branch.name: _result(branch) for branch in branches}
        failed = sum(branch.result is None for branch in branches)
        why = f"{len(branches)} calls" + (f", {failed} of them failed" if failed else "")
        return Verdict(value={"text": self.written, "results": results}, why=why, data=self.data)


def _result(branch: Branch) -> JsonValue:
    if branch.result is not None:
        return {"value": branch.result.value}
    problem = branch.failure.message if branch.failure is not None else f"the call is {branch.state.value}"
    return {"error": problem}
