"""Policy `consensus`: stop the branches of a join once its verdict can no longer change (`Merge.decided`)."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.events import Event, Failed, Succeeded
from plait.core.interfaces import Policy, Stop
from plait.core.view import View

from .._stopping import is_only_for, tolerant_joins

__all__ = ["Consensus"]


class Consensus(Policy):
    """Give up the branches that cannot change a decided vote.

    Only joins with `on_failure="best-effort"` are touched: there a stopped branch costs nothing, elsewhere it could
    fail the join. A branch that some other step reads too is left alone.
    """

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the branches still out of every decided join that this event's step is a branch of."""
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
