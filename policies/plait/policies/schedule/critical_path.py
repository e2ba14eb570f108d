"""Policy `critical-path`: the step with the longest way to the output runs first.

The way is counted in the tokens that may be generated; the number that will be is unknown.
"""

from __future__ import annotations

from plait.core.interfaces import Policy
from plait.core.view import StepView, View

__all__ = ["CriticalPath"]


class CriticalPath(Policy):
    """List scheduling by highest level first (Hu 1961; Graham 1969: at most 2 − 1/m times the optimum on m slots)."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return minus the step's height, in tokens."""
        return (-step.upward_rank,)
