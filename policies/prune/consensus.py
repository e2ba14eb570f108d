"""Policy `consensus`: stop the branches of a join once its verdict can no longer change.

When that is so the join's merge decides (`Merge.decided`); this policy finds the branches that nobody else reads. It
does not know how votes are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.base import Policy, Stop
from orchestrator.core.events import Event, Failed, Succeeded
from orchestrator.core.ir import Join
from orchestrator.core.view import StepView, View

__all__ = ["Consensus"]


class Consensus(Policy):
    """Give up the branches that cannot change a decided vote.

    Only joins with `tolerate="best-effort"` are touched: there a stopped branch costs nothing, elsewhere it could fail
    the join. A branch that some other step reads too is left alone.
    """

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the branches still out of every decided join that this event's step is a branch of."""
        if not isinstance(event, Succeeded | Failed) or view.subject is None:
            return ()
        stops: dict[str, Stop] = {}
        for join in _joins(view.subject):
            branches = join.branches()
            out = [branch for branch in branches if not branch.state.ended]
            if not out or not join.decided():
                continue
            done = sum(branch.done for branch in branches)
            counts = f"{done} of {len(branches)} branches done, {len(out)} out cannot change it"
            reason = f"{join.plan.name} is decided: {counts}"
            for branch in out:
                step = view.step(branch.step)
                if step is not None and all(reader == join for reader in step.readers):
                    stops.setdefault(branch.step, Stop(branch.step, reason))
        return tuple(stops.values())


def _joins(step: StepView) -> list[StepView]:
    """Return the tolerant joins that read a step, or that read a step whose value it has just become."""
    joins: list[StepView] = []
    at: StepView | None = step
    while at is not None and at.state.ended:
        for reader in at.readers:
            op = reader.plan.op
            if isinstance(op, Join) and op.tolerate == "best-effort" and reader not in joins:
                joins.append(reader)
        at = at.owner
    return joins
