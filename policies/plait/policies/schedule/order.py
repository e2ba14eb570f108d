"""Policies that order ready steps by predictions: `deadline` and `predictive`."""

from __future__ import annotations

import math
from statistics import fmean

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.lengths import SHARE
from plait.core.plan import template
from plait.core.view import StepView, View, WorkerView

__all__ = ["Deadline", "Predictive"]


# Policy `deadline`: run the step with the least slack before its run's deadline first.


_AHEAD = 200
"""Maximum number of steps on the paths to the output that are computed one by one."""
_LATE_S = 3600.0
"""Seconds by which a run goes back that can no longer meet its deadline."""
_MEDIAN = 0.5
"""Quantile of the lengths of similar steps that counts as a step's expected length."""


class Deadline(Policy):
    """Least slack first. Slack is the time until the run's deadline minus the predicted seconds of the longest path
    from the step to the output (HexGen-Text2SQL, arXiv 2505.05286, on the plan's graph instead of a list of stages).

    The deadline is that of the run's budget (`seconds`), or `seconds` of this policy. It orders the steps of one
    fairness group (`Request.fairness_group`); fairness decides between groups. Waiting steps gain priority, so none
    starves: with ageing a, a step that became ready r seconds earlier goes first if its slack is at most a · r larger.

    A run that can no longer meet its deadline goes behind the runs that can: its path would take too long even on the
    fastest engine without other load. The usual pace would misjudge many runs, since engines get faster as their
    batches get smaller.

    Differs from the paper: steps age, and a step without a free worker does not block the next step.
    """

    fidelity = Fidelity("variant", "slack over a graph, not a list of stages", paper="2505.05286")

    seconds: float = Field(
        default=60.0, gt=0, description="From submission to the deadline of a run whose budget has none."
    )
    ageing: float = Field(default=0.1, ge=0, description="Seconds of slack that a second of waiting makes good.")

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the latest time at which the step should begin. It gives the same order as slack, since time passes
        equally for all steps; so the rank stays valid while the step waits."""
        deadline = view.deadline(step.run)
        if deadline is None:
            deadline = view.submitted(step.run) + self.seconds
        tokens = self.tokens_ahead(step, view)
        paces = [
            (pace, worker.pace(1) or pace)
            for worker in view.workers
            if worker.could_take(step) and (pace := worker.pace(max(1, worker.running))) is not None
        ]
        usual = fmean(pace for pace, _ in paces) if paces else 0.0
        alone = min((pace for _, pace in paces), default=0.0)
        behind = _LATE_S if view.now + tokens * alone > deadline else 0.0
        return (deadline - tokens * usual + behind + self.ageing * view.now,)

    def tokens_ahead(self, step: StepView, view: View) -> float:
        """Return the expected tokens of the longest path from a step's start to the end of its run."""
        return _Way(view).tokens(step)


class _Way:
    """The longest paths to a run's output, in tokens that the steps are expected to generate."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._ways: dict[str, float] = {}
        self._lengths: dict[tuple[str, int, bool], float] = {}

    def tokens(self, step: StepView) -> float:
        """Return the tokens of the longest path from a step's start to the end of its run."""
        known = self._ways.get(step.id)
        if known is not None:
            return known
        if len(self._ways) >= _AHEAD:
            return SHARE * step.upward_rank
        self._ways[step.id] = 0.0
        after = step.consumers or (step.owner.consumers if step.owner is not None else ())
        way = self._ways[step.id] = self._own(step) + max(map(self.tokens, after), default=0.0)
        return way

    def _own(self, step: StepView) -> float:
        if step.kind != "think":
            return 0.0
        like = template(step.id), step.max_tokens, step.after is None
        if like not in self._lengths:
            self._lengths[like] = self._view.expected_tokens(step, _MEDIAN)
        return self._lengths[like]


# Policy `predictive`: send a step to the worker that is predicted to end it first, even if it waits for a slot.


_PATIENCE = 1.2
"""A step waits for a worker only if every free one is predicted to take this many times as long."""
_READ_RATIO = 150.0
"""Prompt tokens that a worker reads in the time of decoding one token of each sequence."""


class Predictive(Policy):
    """Predicts for each worker the time until the step would end: the wait for a slot, the prefill of the uncached part
    of the prompt, and the expected tokens at the worker's pace with one more attempt (Block, arXiv 2508.03611; the pace
    is learned from ended attempts, without calibration). The step goes to the fastest worker, or waits for it.

    Differs from Block: sent requests count before they arrive, so simultaneous requests do not all go to one worker;
    cached tokens count; a worker of unknown pace counts as the slowest but is never excluded; a step waits in our queue
    instead of the engine's, so it can still go to another worker.
    """

    fidelity = Fidelity("variant", "what is on its way and what is cached counts", paper="2508.03611")

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        """Return the worker with the earliest predicted end, or a hold until this worker has a slot."""
        if step.kind != "think":
            return None
        workers = [worker for worker in view.workers if worker.could_take(step)]
        paces = {worker.name: worker.pace(min(worker.slots, worker.running + 1)) for worker in workers}
        slowest = max((pace for pace in paces.values() if pace is not None), default=None)
        if slowest is None:
            return None
        tokens = view.expected_tokens(step)
        cached = view.cached(step)
        best, soonest, free, soon = None, math.inf, None, math.inf
        for worker in workers:
            unread = step.prompt_tokens - _cached_tokens(step, worker, cached.get(worker.name, 0))
            end = self._predict_seconds(worker, paces[worker.name] or slowest, tokens, unread)
            if end < soonest:
                best, soonest = worker, end
            if worker.takes(step) and end < soon:
                free, soon = worker, end
        if free is not None and soon <= _PATIENCE * soonest:
            return Pin(free.name, f"it is predicted to end there in {soon:.2f} s")
        if best is None or best is free:
            return None
        return Defer(f"waits for {best.name}: predicted to end there in {soonest:.2f} s", worker=best.name)

    def _predict_seconds(self, worker: WorkerView, pace: float, tokens: float, unread: int) -> float:
        """Return the seconds until a step would end on a worker. A slot becomes free after a part of a step's time, as
        steps start at different times; steps that wait there already go first."""
        wait = 0.0 if worker.free > 0 else (worker.kept + 1) * pace * tokens / max(1, worker.slots)
        return wait + pace * (tokens + unread / _READ_RATIO)


def _cached_tokens(step: StepView, worker: WorkerView, cached: int) -> int:
    """Return the number of tokens of a step's prompt that a worker has cached."""
    return step.shared_tokens if step.home == worker.name else min(cached, step.prompt_tokens)
