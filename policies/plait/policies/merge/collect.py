"""Merge `collect`: all values, in order."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

__all__ = ["Collect"]


class Collect(Merge):
    """Return the list of the branches' values in the join's order, `null` for a branch that has none."""

    plans_more = False
    collects = True

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the list, and in `why` who is missing."""
        values = [branch.result.value if branch.done and branch.result else None for branch in branches]
        missing = [f"{branch.name} {branch.state}" for branch in branches if not branch.done]
        why = f"{len(branches) - len(missing)} of {len(branches)} branches"
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            why += f"; missing: {shown}"
        return Verdict(value=values, why=why)
