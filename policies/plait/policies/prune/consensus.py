"""Policy `consensus`: stop the branches of a join as soon as its verdict can no longer change (`Merge.decided`)."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.events import Event, Failed, Succeeded
from plait.core.interfaces import Policy, Stop
from plait.core.view import View

from .._stopping import is_only_for, tolerant_joins

__all__ = ["Consensus"]


class Consensus(Policy):
    """Cancel the branches that cannot change a decided vote.

    It affects only joins with `on_failure="best-effort"`: a stopped branch could fail any other join. It never stops a
    branch that another step reads too.
    """

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the unfinished branches of every decided join that reads the event's step."""
        if not isinstance(event, Succeeded | Failed) or view.subject is None:
            return ()
        stops: dict[str, Stop] = {}
        for join in tolerant_joins(view.subject):
            if not join.outstanding or not join.decided():
                continue
            branches = join.branches()
            out = [branch for branch in branches if not branch.state.ended]
            done = sum(branch.done for branch in branches)
            counts = f"{done} of {len(branches)} branches done, {len(out)} out cannot change it"
            reason = f"{join.plan.name} is decided: {counts}"
            for branch in out:
                if is_only_for(join, branch, view):
                    stops.setdefault(branch.step, Stop(branch.step, reason))
        return tuple(stops.values())
