"""Merge `observations`: what a turn of a conversation wrote, and what each of its calls came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.access import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

__all__ = ["Observations"]


class Observations(Merge):
    """Return {"text": …, "results": {step: {"value": …} or {"error": …}}}, in the order of the branches, whatever the
    order in which they ended. A call that failed is an observation; use it in a join that tolerates failures."""

    plans_more = False

    written: Annotated[str, Free()] = Field(default="", description="What the model wrote.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the record."""
        results: dict[str, JsonValue] = {branch.name: _result(branch) for branch in branches}
        failed = sum(branch.result is None for branch in branches)
        why = f"{len(branches)} calls" + (f", {failed} of them failed" if failed else "")
        return Verdict(value={"text": self.written, "results": results}, why=why)


def _result(branch: Branch) -> JsonValue:
    if branch.result is not None:
        return {"value": branch.result.value}
    problem = branch.failure.message if branch.failure is not None else f"the call is {branch.state.value}"
    return {"error": problem}
