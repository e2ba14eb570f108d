"""Policy `gang`: spread the siblings of a fan-out over the number of workers that finishes them soonest.

It uses the rates given as options and looks at one fan-out at a time.
"""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.interfaces import Defer, Pin, Policy
from plait.core.view import StepView, View, WorkerView

__all__ = ["Gang"]


class Gang(Policy):
    """For N siblings that share a prefix of P tokens and generate about L each, chooses the k workers that minimise
    max over workers of (P / prefill rate, unless it is cached there, + the time to decode its share of the N).

    Decoding n sequences beside b others takes L · (b + n + half) / peak seconds: together they make peak · (b + n) / (b
    + n + half) tokens a second, a curve that saturates as engines do. The first sibling on each chosen worker is its
    leader. All leaders are sent before any second sibling, so every worker is prefilling when the others arrive.
    """

    prefill_rate: float = Field(default=20_000.0, gt=0, description="Prompt tokens a second that a worker reads.")
    peak: float = Field(
        default=5_600.0, gt=0, description="Tokens a second that a worker decodes at most, all sequences together."
    )
    half: float = Field(default=13.0, ge=0, description="Sequences with which it decodes half of that.")
    expected: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of its `max_tokens` that a step is expected to generate, until siblings have ended.",
    )
    spare: float = Field(
        default=0.05,
        ge=0,
        description="Of all k that are this close to the quickest (a share of its time) the smallest is taken: it "
        "reads less.",
    )
    leader: bool = Field(
        default=False,
        description="Siblings wait for the first token of their worker's leader. For engines that would read the "
        "prefix once for each sibling; vLLM shares it within a step.",
    )

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        """Return the worker for one of several siblings, or `None` for a step without siblings."""
        siblings = step.siblings
        if step.kind != "think" or len(siblings) < 2:
            return None
        chosen = [worker for name in siblings.sent if (worker := view.worker(name)) is not None and worker.up]
        home = view.worker(step.home) if step.home is not None else None
        # The worker with the prefix cached comes first, as it alone needs no prefill.
        if home is not None and home.up and home not in chosen and not siblings.sent:
            return self._pin_to(step, home, "has the prefix")
        fresh = None
        least = min((worker.running for worker in chosen), default=0)
        # Skipped if all workers that serve the model are chosen already.
        if len(chosen) < view.serving(step):
            fresh = self._least_busy_worker(step, view, chosen)
        if fresh is not None and len(chosen) < self._best_worker_count(step, view, chosen, fresh, least):
            return self._pin_to(
                step, fresh, f"is number {len(chosen) + 1} of those that make {len(siblings)} siblings quickest"
            )
        free = [worker for worker in chosen if worker.takes(step)]
        if not free:
            return Defer(f"the {len(chosen)} workers of its siblings are full", behind=_name(step)) if chosen else None
        live = siblings.live
        best = min(free, key=lambda worker: live.get(worker.name, 0))
        if self.leader and self._leads(step, best.name):
            return Defer(f"waits for the first token of its leader on {best.name}", behind=_name(step))
        return Pin(best.name, f"{siblings.sent[best.name]} of {len(siblings)} siblings went there")

    def _pin_to(self, step: StepView, worker: WorkerView, why: str) -> Pin | None:
        return Pin(worker.name, f"{worker.name} {why}") if worker.takes(step) else None

    def _least_busy_worker(self, step: StepView, view: View, chosen: list[WorkerView]) -> WorkerView | None:
        """Return the worker with the fewest attempts among those not chosen yet."""
        idlest = view.idlest(step)
        if idlest is None or idlest not in chosen:
            return idlest
        others = (worker for worker in view.workers if worker.takes(step) and worker not in chosen)
        return min(others, key=lambda worker: worker.running, default=None)

    def _best_worker_count(
        self, step: StepView, view: View, chosen: list[WorkerView], fresh: WorkerView, least: int
    ) -> int:
        """Return the smallest number of workers whose predicted makespan is within `spare` of the minimum."""
        siblings = step.siblings
        n, most = len(siblings), view.serving(step)
        # Finished siblings predict the length better than a share of the limit; the latest siblings suffice.
        finished = [ended.tokens for ended in siblings.finished[-32:]]
        length = sum(finished) / len(finished) if finished else self.expected * step.max_tokens
        prefix = step.shared_tokens / self.prefill_rate
        own = max(0, step.prompt_tokens - step.shared_tokens) / self.prefill_rate
        live = sum(siblings.live.values())
        there = max(0, least - live // len(chosen)) if chosen else fresh.running
        times: dict[int, float] = {}
        # Many k give the busiest worker the same number of siblings: only the smallest of these k matters.
        for size in dict.fromkeys(math.ceil(n / k) for k in range(1, min(n, most) + 1)):
            k = math.ceil(n / size)
            together = min(size, max(1, fresh.slots))
            beside = max(there, fresh.running) + together + self.half
            read = 0.0 if k == 1 and step.home is not None else prefix
            times[k] = read + size * own + math.ceil(size / together) * length * beside / self.peak
        limit = min(times.values()) * (1 + self.spare)
        return min(k for k, time in times.items() if time <= limit)

    def _leads(self, step: StepView, worker: str) -> bool:
        """Return whether all siblings on a worker have yet to send their first token."""
        there = [sibling for sibling in step.siblings if sibling.ran_on == worker]
        return all(attempt.worker == worker and not attempt.tokens for attempt in there)


def _name(step: StepView) -> str:
    first = next(iter(step.siblings))
    return first.id
