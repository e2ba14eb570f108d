"""Policy `affinity`: a step goes where the context that it continues is cached, unless that worker is overloaded."""

from __future__ import annotations

from pydantic import Field

from plait.core.interfaces import Hold, Place, Policy
from plait.core.view import StepView, View, WorkerView

__all__ = ["Affinity"]

_AS_GOOD = 0.9
"""Of what the best has cached: a worker with so much is as good, if it is less loaded."""


class Affinity(Policy):
    """Sends a step to the worker of the step that it continues (`after`). One that begins a context goes to a worker
    that has most of its prompt cached, from any run, or else to the worker with most of its siblings (the steps with
    the same prompt). So each prompt is read once however often it is sampled, and a header that many runs share too.

    Of several workers that have it cached the least loaded is taken. When all of them are overloaded the step goes to
    the least loaded worker of all, which has the prompt cached from then on: so a prefix that many want is replicated.
    What Ray Serve's prefix-aware router guesses from characters is read off the plan here where the plan says it, and
    there is the load guard that the router lacks by default.
    """

    share: float = Field(default=0.5, gt=0, le=1)
    """A cached beginning counts when it is at least this share of the prompt …"""
    least: int = Field(default=64, ge=1)
    """… and so many tokens."""
    overload: float = Field(default=2.0, ge=1.0)
    """The worker is overloaded when it runs more than this times as many attempts as the least loaded one …"""
    slack: int | None = Field(default=None, ge=0)
    """… and this many more besides; by default 32, or three quarters of its slots if these are fewer. Then the step
    goes to the least loaded one and its context is read again."""
    wait: bool = True
    """A step whose worker has no free slot and is not overloaded waits for it. Off: it goes to the least loaded one."""

    def place(self, step: StepView, view: View) -> Place | Hold | None:
        """Return the worker where the context is cached, or `None` if there is none to prefer."""
        wanted = self._wanted(step, view)
        if wanted is None or not wanted.up:
            return None
        idlest = view.idlest(step)
        least = idlest.running if idlest is not None else 0
        slack = self.slack if self.slack is not None else min(32, 3 * wanted.slots // 4)
        if wanted.running > self.overload * least + slack:
            return None
        if wanted.takes(step):
            return Place(wanted.name, f"{wanted.name} has its context cached")
        if self.wait and wanted.could_take(step):
            return Hold(f"waits for {wanted.name}, which has its context cached", worker=wanted.name)
        return None

    def _wanted(self, step: StepView, view: View) -> WorkerView | None:
        if step.kind != "think":
            return None
        if step.home is not None:
            return view.worker(step.home)
        cached = view.cached(step)
        most = max(cached.values(), default=0)
        if most >= max(self.least, self.share * step.prompt_tokens):
            holders = (view.worker(name) for name, tokens in cached.items() if tokens >= _AS_GOOD * most)
            there = [worker for worker in holders if worker is not None and worker.could_take(step)]
            if there:
                return min(there, key=lambda worker: (worker.running, worker.name))
        sent = step.siblings.sent
        name = max(sent, key=lambda worker: sent[worker], default=None)
        return view.worker(name) if name is not None else None
