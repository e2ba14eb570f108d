"""Policy `affinity`: a step goes where the context that it continues is cached, unless that worker is overloaded."""

from __future__ import annotations

from pydantic import Field

from plait.core.interfaces import Hold, Place, Policy
from plait.core.view import StepView, View, WorkerView

__all__ = ["Affinity"]


class Affinity(Policy):
    """Sends a step to the worker of the step that it continues (`after`), else to the worker with most of its siblings
    (the steps with the same prompt), so each prompt is read once however often it is sampled.

    What Ray Serve's prefix-aware router guesses from characters is read off the plan here, and it has the load guard
    that the router lacks by default.
    """

    overload: float = Field(default=2.0, ge=1.0)
    """The worker is overloaded when it runs more than this times as many attempts as the least loaded one …"""
    slack: int = Field(default=32, ge=0)
    """… and this many more besides. Then the step goes to the least loaded one and its context is read again."""
    wait: bool = True
    """A step whose worker has no free slot and is not overloaded waits for it. Off: it goes to the least loaded one."""

    def place(self, step: StepView, view: View) -> Place | Hold | None:
        """Return the worker where the context is cached, or `None` if there is none to prefer."""
        wanted = self._wanted(step, view)
        if wanted is None or not wanted.up:
            return None
        idlest = view.idlest(step)
        least = idlest.running if idlest is not None else 0
        if wanted.running > self.overload * least + self.slack:
            return None
        if wanted.takes(step):
            return Place(wanted.name, f"{wanted.name} has its context cached")
        if self.wait and wanted.could_take(step):
            return Hold(f"waits for {wanted.name}, which has its context cached", behind=wanted.name)
        return None

    def _wanted(self, step: StepView, view: View) -> WorkerView | None:
        if step.kind != "think":
            return None
        name = step.home
        if name is None:
            sent = step.siblings.sent
            name = max(sent, key=lambda worker: sent[worker], default=None)
        return view.worker(name) if name is not None else None
