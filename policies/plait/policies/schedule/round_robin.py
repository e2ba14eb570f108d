"""Policy `round-robin`: each step goes to the worker after the last one's. A baseline."""

from __future__ import annotations

from plait.core.interfaces import Pin, Policy
from plait.core.view import StepView, View

__all__ = ["RoundRobin"]


class RoundRobin(Policy):
    """What most balancers do first: workers in turn, those without room passed over."""

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker whose turn it is."""
        workers = [worker for worker in view.workers if worker.could_take(step)]
        for i in range(len(workers)):
            worker = workers[(view.attempts + i) % len(workers)]
            if worker.takes(step):
                return Pin(worker.name, "its turn")
        return None
