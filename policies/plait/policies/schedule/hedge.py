"""Policy `hedge`: start a second attempt of a straggler on another worker, from its tokens so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from plait.core.events import Event
from plait.core.interfaces import Hedge, Policy, ReviewAt
from plait.core.lengths import quantile
from plait.core.plan import template
from plait.core.view import AttemptEnd, StepView, View, WorkerView

__all__ = ["HedgeStragglers"]

_SHARE = 0.125


class HedgeStragglers(Policy):
    """Reissues the rest of a step once, when it has run longer than the q95 of similar steps on the other workers and
    these have little load. The first result wins (Dean & Barroso, "The tail at scale", 2013, whose hedged requests add
    a few percent of load). A worker with the siblings' prefix and room is preferred.

    Short steps end first, so the times of ended steps say little about long steps. Therefore a step that reports its
    tokens is a straggler only if it is also slow, not merely long. A step is hedged only to a worker with clearly fewer
    late steps of the run, since all steps are late during a burst.

    The second attempt must be predicted to end sooner. The prediction compares the time for the step's expected
    remaining tokens (`core.lengths`) at the first attempt's pace and at the second worker's pace with one more attempt.
    Without a known pace or reported tokens the hedge is made without a prediction.
    """

    needs_counts: ClassVar[bool] = True

    quantile: float = Field(default=0.95, gt=0, le=1, description="Which quantile counts: of the times of like steps.")
    stretch: float = Field(default=1.0, gt=0, description="A straggler has run longer than this times that.")
    min_ended: int = Field(default=4, ge=1, description="Like steps that must have ended before their times count.")
    slow: float = Field(
        default=0.6,
        gt=0,
        description="A straggler that reports its tokens makes fewer a second than this share of the median.",
    )
    gain: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the time until its end that a hedge must be predicted to save."
    )
    low: float = Field(
        default=0.75, ge=0, le=1, description="No hedge to a worker with more than this share of its slots taken."
    )
    interval: float = Field(
        default=0.05,
        gt=0,
        description="Seconds between two looks at least. They get rarer the longer the oldest step runs: an eighth "
        "of that time …",
    )
    seldom: float = Field(default=1.0, gt=0, description="… and at most this number of seconds.")

    def first_look(self) -> float:
        """Return the seconds between two checks: a run whose steps are all slow causes no other events."""
        return self.interval

    def review(self, event: Event, view: View) -> Sequence[Hedge | ReviewAt]:
        """Return hedges for stragglers at each check, and the time of the next check."""
        # Only a timed check finds stragglers. Other events only schedule the check.
        if event.kind != "tick":
            return () if event.kind == "progressed" else (ReviewAt(view.now + self.interval),)
        measures: dict[object, tuple[float, float] | None] = {}
        late: list[tuple[StepView, str, str]] = []
        going: Counter[str] = Counter()
        longest = 0.0
        for step in view.running(view.run):
            started, worker = step.started, step.worker
            if started is None or worker is None:
                continue
            going[worker] += 1
            op = step.plan.op
            name = op.tool if op.kind == "call" else template(step.id)
            like = (op.kind, name, step.max_tokens, step.after is None, worker)
            if like not in measures:
                # Its own worker is excluded: if all steps there are slow, none would look slow.
                measures[like] = self._measure([peer for peer in view.peers(step) if peer.worker != worker])
            why = self._lateness_reason(step, view.now - started, measures[like])
            if why:
                late.append((step, worker, why))
            longest = max(longest, view.now - started)
        if not going:
            return ()
        soon = view.now + max(self.interval, min(longest * _SHARE, self.seldom))
        behind = Counter(worker for _, worker, _ in late)
        share = {worker: behind[worker] / count for worker, count in going.items()}
        hedges = [self._hedge(step, view, why, share) for step, _, why in late if not step.hedged]
        return [*(hedge for hedge in hedges if hedge is not None), ReviewAt(soon)]

    def _lateness_reason(self, step: StepView, elapsed: float, measure: tuple[float, float] | None) -> str:
        """Return the reason why a step is late, or an empty text if it is on time."""
        if measure is None or elapsed <= measure[0] or (step.tokens and step.tokens / elapsed >= measure[1]):
            return ""
        return f"runs for {elapsed:.3g} s, others like it took up to {measure[0]:.3g} s"

    def _measure(self, ended: Sequence[AttemptEnd]) -> tuple[float, float] | None:
        """Return the seconds above which a step is long, and the tokens a second below which it is slow."""
        if len(ended) < self.min_ended:
            return None
        times = [attempt.seconds for attempt in ended]
        speeds = [attempt.tokens / attempt.seconds for attempt in ended if attempt.seconds > 0]
        return self.stretch * quantile(times, self.quantile), self.slow * quantile(speeds or [0.0], 0.5)

    def _hedge(self, step: StepView, view: View, why: str, share: Mapping[str, float]) -> Hedge | None:
        assert step.worker is not None
        # Only a worker with clearly fewer late steps qualifies: all steps are late during a burst.
        most = share[step.worker] / 2
        for name in step.siblings.sent:
            worker = view.worker(name)
            if worker is not None and name != step.worker and self._helps(worker, step, share, most):
                saving = self._saves(step, worker, view)
                if saving is not None:
                    return Hedge(step.id, f"{why}; {name} has the prefix{saving}", name)
        idlest = view.idlest(step)
        if idlest is None or idlest.name == step.worker or not self._helps(idlest, step, share, most):
            return None
        saving = self._saves(step, idlest, view)
        return None if saving is None else Hedge(step.id, f"{why}{saving}", idlest.name)

    def _helps(self, worker: WorkerView, step: StepView, share: Mapping[str, float], most: float) -> bool:
        if not worker.takes(step):
            return False
        return worker.running <= self.low * worker.slots and share.get(worker.name, 0.0) <= most

    def _saves(self, step: StepView, worker: WorkerView, view: View) -> str | None:
        """Return the predicted saving of a second attempt as text, empty if unknown; `None` if it is too small."""
        pace = worker.pace(worker.running + 1)
        # Without a prediction the times alone decide.
        if not step.tokens or step.kind != "think" or step.started is None or pace is None:
            return ""
        left = view.expected_tokens(step)
        here, there = left * (view.now - step.started) / step.tokens, left * pace
        if there > (1.0 - self.gain) * here:
            return None
        return f"; predicted to end in {there:.2g} s there, in {here:.2g} s here"
