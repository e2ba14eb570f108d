"""Policy `least-loaded`: each step goes to the worker with the fewest tokens still to generate."""

from __future__ import annotations

from pydantic import Field

from plait.core.interfaces import Pin, Policy
from plait.core.view import StepView, View

__all__ = ["LeastLoaded"]


class LeastLoaded(Policy):
    """Least outstanding tokens, of all workers or, where there are many, of a few (the power of two choices:
    Mitzenmacher, 2001). Without any policy the machine counts attempts instead."""

    choices: int = Field(
        default=0, ge=0, description="Number of workers to compare, a different sample each time; 0: all."
    )

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker with the least load; the first of equals."""
        workers = view.workers
        if self.choices and len(workers) > self.choices:
            stride = len(workers) // self.choices
            workers = [workers[(view.attempts + i * stride) % len(workers)] for i in range(self.choices)]
        best = min((worker for worker in workers if worker.takes(step)), key=lambda worker: worker.load, default=None)
        return Pin(best.name, f"{best.load} tokens outstanding there") if best is not None else None
