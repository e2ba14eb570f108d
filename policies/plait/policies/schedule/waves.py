"""Policy `waves`: a limited number of a join's branches is in flight; the others wait, where cancelling is free."""

from __future__ import annotations

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Policy
from plait.core.view import StepView, View

__all__ = ["Waves"]


class Waves(Policy):
    """Keeps unstarted branches in our queue: at most `n` of one join are running, and the next starts only when
    one of them has ended and left the join undecided (the windows of early-stopping self-consistency, arXiv 2401.10480,
    without the wait for the slowest of each window). Together with `consensus` what is never started costs nothing.
    """

    fidelity = Fidelity("exact", paper="2401.10480")

    n: int = Field(default=8, ge=1, description="Branches at once: those of one join in flight.")

    def place(self, step: StepView, view: View) -> Defer | None:
        """Hold a branch of a join that has its number in flight."""
        for join in step.consumers:
            if join.kind != "join":
                continue
            if join.going >= self.n:
                return Defer(f"{join.going} branches of {join.plan.name} are in flight", behind=join.id)
        return None
