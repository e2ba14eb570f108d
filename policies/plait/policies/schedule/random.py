"""Policy `random`: any worker with room, by a hash of the step's id. A baseline."""

from __future__ import annotations

import zlib

from pydantic import Field

from plait.core.interfaces import Pin, Policy
from plait.core.view import StepView, View

__all__ = ["Random"]


class Random(Policy):
    """What a balancer does that spreads requests blindly. The same step and seed always give the same choice."""

    seed: int = Field(default=0, description="Another seed, another choice.")

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker that a hash of the step's id gives; as long as that one has no room, draw again."""
        workers = view.workers
        for i in range(4 * len(workers)):
            worker = workers[zlib.crc32(f"{self.seed}/{step.id}/{i}".encode()) % len(workers)]
            if worker.takes(step):
                return Pin(worker.name, "drawn")
        return None
