"""Policy `fifo`: steps run in the order in which they became ready. The machine's own order, named."""

from __future__ import annotations

from plait.core.interfaces import Policy
from plait.core.view import StepView, View

__all__ = ["Fifo"]


class Fifo(Policy):
    """First ready, first run. As a policy it makes the order explicit, and is the baseline to compare others with."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the same key for every step: the machine breaks ties by order of arrival."""
        return ()
