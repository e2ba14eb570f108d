"""Policy `successive-halving`: at each of several lengths, keep the more confident part of the branches. A baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.events import Event, Progressed
from plait.core.interfaces import Policy, Stop
from plait.core.states import State
from plait.core.view import StepView, View

from .._stopping import tolerant_votes

__all__ = ["SuccessiveHalving"]


class SuccessiveHalving(Policy):
    """Successive halving (Karnin et al., 2013; Jamieson and Talwalkar, arXiv 1502.07943) with tokens as the resource.

    Rung k is at `first` * `factor`^k tokens, and is reached when all running branches of a vote are that long. Of n
    branches the ceil(n / factor^(k+1)) with the highest sliding confidence then stay, at least `stay`; finished
    branches stay and count. Branches that have not started take part from the next rung on. The join's order breaks
    ties. Needs `logprobs=20` and a `window` of the planner; a branch without confidence ranks last.
    """

    fidelity = Fidelity("exact", paper="1502.07943")

    first: int = Field(default=64, ge=1, description="Tokens at the first rung.")
    factor: float = Field(default=2.0, gt=1.0, description="How much longer each rung is, and how many fewer stay.")
    stay: int = Field(default=1, ge=1, description="Branches that always stay.")

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the branches to stop if the slowest running branch has just reached a rung."""
        subject = view.subject
        if not isinstance(event, Progressed) or event.tokens == 0 or subject is None:
            return ()
        before, now = subject.tokens - event.tokens, subject.tokens
        rung = self._rung(now)
        if rung < 0 or self._rung(before) == rung:
            return ()
        stops: dict[str, Stop] = {}
        for join in tolerant_votes(subject):
            for stop in self._stop_at(rung, join):
                stops.setdefault(stop.step, stop)
        return tuple(stops.values())

    def _rung(self, tokens: int) -> int:
        """Return the last rung that a length has reached, or -1."""
        rung = -1
        while tokens >= self.first * self.factor ** (rung + 1):
            rung += 1
        return rung

    def _stop_at(self, rung: int, join: StepView) -> list[Stop]:
        branches = join.needs
        running = [step for step in branches if step.state is State.RUNNING]
        # The slowest branch decides when a rung is reached, so that all branches are judged at the same length.
        if any(self._rung(step.tokens) < rung for step in running):
            return []
        done = sum(step.state is State.DONE for step in branches)
        # Finished branches stay and count towards `keep`.
        keep = max(math.ceil(len(branches) / self.factor ** (rung + 1)), self.stay) - done
        order = {step.id: at for at, step in enumerate(branches)}
        ranked = sorted(running, key=lambda step: (-(step.group or -math.inf), order[step.id]))
        why = f"{join.plan.name}: not among the {max(keep, 0)} surest of {len(running)} at {running[0].tokens} tokens"
        out = [step for step in ranked[max(keep, 0) :] if all(reader == join for reader in step.consumers)]
        return [Stop(step.id, why) for step in out]
