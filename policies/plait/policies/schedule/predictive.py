"""Policy `predictive`: send a step to the worker that is predicted to end it first, even if it waits for a slot."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.lengths import QUANTILE
from plait.core.view import StepView, View, WorkerView

__all__ = ["Predictive"]


class Predictive(Policy):
    """Predicts for each worker the time until the step would end: the wait for a slot, the prefill of the uncached part
    of the prompt, and the expected tokens at the worker's pace with one more attempt (Block, arXiv 2508.03611; the pace
    is learned from ended attempts, without calibration). The step goes to the fastest worker, or waits for it.

    Differs from Block: sent requests count before they arrive, so simultaneous requests do not all go to one worker;
    cached tokens count; a worker of unknown pace counts as the slowest but is never excluded; a step waits in our queue
    instead of the engine's, so it can still go to another worker.
    """

    fidelity = Fidelity("variant", "what is on its way and what is cached counts", paper="2508.03611")

    quantile: float = Field(
        default=QUANTILE,
        gt=0,
        lt=1,
        description="Which quantile counts: of the lengths of like steps, for what a step is expected to generate.",
    )
    read: float = Field(
        default=150.0,
        gt=0,
        description="Prompt tokens that a worker reads in the time that it decodes one token of each sequence.",
    )
    choices: int = Field(
        default=0, ge=0, description="Number of workers to compare, a different sample each time; 0: all."
    )
    patience: float = Field(
        default=1.2,
        ge=1.0,
        description="A step waits for a worker only if any with a free slot is predicted to take this times as long.",
    )

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        """Return the worker with the earliest predicted end, or a hold until this worker has a slot."""
        if step.kind != "think":
            return None
        workers = [worker for worker in view.workers if worker.could_take(step)]
        if self.choices and len(workers) > self.choices:
            stride = len(workers) // self.choices
            workers = [workers[(view.attempts + i * stride) % len(workers)] for i in range(self.choices)]
        paces = {worker.name: worker.pace(min(worker.slots, worker.running + 1)) for worker in workers}
        slowest = max((pace for pace in paces.values() if pace is not None), default=None)
        if slowest is None:
            return None
        tokens = view.expected_tokens(step, self.quantile)
        cached = view.cached(step)
        best, soonest, free, soon = None, math.inf, None, math.inf
        for worker in workers:
            unread = step.prompt_tokens - _cached_tokens(step, worker, cached.get(worker.name, 0))
            end = self._predict_seconds(worker, paces[worker.name] or slowest, tokens, unread)
            if end < soonest:
                best, soonest = worker, end
            if worker.takes(step) and end < soon:
                free, soon = worker, end
        if free is not None and soon <= self.patience * soonest:
            return Pin(free.name, f"it is predicted to end there in {soon:.2f} s")
        if best is None or best is free:
            return None
        return Defer(f"waits for {best.name}: predicted to end there in {soonest:.2f} s", worker=best.name)

    def _predict_seconds(self, worker: WorkerView, pace: float, tokens: float, unread: int) -> float:
        """Return the seconds until a step would end on a worker. A slot becomes free after a part of a step's time, as
        steps start at different times; steps that wait there already go first."""
        wait = 0.0 if worker.free > 0 else (worker.kept + 1) * pace * tokens / max(1, worker.slots)
        return wait + pace * (tokens + unread / self.read)


def _cached_tokens(step: StepView, worker: WorkerView, cached: int) -> int:
    """Return the number of tokens of a step's prompt that a worker has cached."""
    return step.shared_tokens if step.home == worker.name else min(cached, step.prompt_tokens)
