"""Policy `breadth-first`: the first branches of all requests run before the second of any."""

from __future__ import annotations

from plait.core.interfaces import Policy
from plait.core.view import StepView, View

__all__ = ["BreadthFirst"]


class BreadthFirst(Policy):
    """Ranks a step by its place among the branches of the join that it goes into; steps that go into none come first.

    With an early stop, branch k of a join is wanted only if those before it have not decided: with a chance p that one
    does, the k-th is worth (1 − p)^(k − 1) of the first. While many requests share slots that are all taken, the most
    answers come from the branch that is worth most, not the oldest. Unlike `waves` it leaves no slot empty, so a
    lone request has all its branches at once. It orders what waits in our queue: give an engine no more slots than it
    decodes well together. The price is that a hard request waits while easy ones keep coming.
    """

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the step's place among the needs of a join that reads it, the first if there are several."""
        name = step.plan.name
        needs = [join.plan.needs for join in step.consumers if join.kind == "join"]
        return (float(min((names.index(name) for names in needs if name in names), default=-1)),)
