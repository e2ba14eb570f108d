"""Policies that choose workers: `affinity` by cached contexts, unless a worker is overloaded; `hedge`, a second attempt
of a straggler that continues from its tokens so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from plait.core.events import Event
from plait.core.interfaces import Defer, Hedge, Pin, Policy, ReviewAt
from plait.core.lengths import quantile
from plait.core.placement import choose_by_hash, choose_holder, is_overloaded
from plait.core.plan import template
from plait.core.view import AttemptEnd, StepView, View, WorkerView

__all__ = ["Affinity", "HedgeStragglers"]


_CACHED_TOKENS = 64
"""A cached beginning counts from this number of tokens and half the prompt."""
_READ_TOKENS = 150.0
"""Prompt tokens that a worker reads in the time that it decodes one token of each sequence. For what another run has
left in a cache a step waits only if reading it again would take longer than it takes until a slot is free."""


class Affinity(Policy):
    """Sends a step to the worker of the step that it continues (`after`). A step that begins a context goes to a worker
    that has most of its prompt cached, from any run, or else to the worker with most of its siblings (the steps with
    the same prompt). So a prompt is prefilled once for all its samples, and so is a header that many runs share.

    Among several workers with the prompt cached, the least loaded one gets the step. If all of them are overloaded, the
    step goes to the least loaded worker of all, which then caches the prompt: so a popular prefix is replicated. Ray
    Serve's prefix-aware router guesses prefixes from characters; this policy takes them from the plan if it has them.
    It also has the load guard that the router lacks by default.
    """

    overload: float = Field(
        default=2.0,
        ge=1.0,
        description="The worker is overloaded when it runs more than this times as many attempts as the least "
        "loaded one …",
    )
    slack: int | None = Field(
        default=None,
        ge=0,
        description="… plus this number; by default 32, or three quarters of its slots if these are "
        "fewer; for a beginning that another run has left there a quarter of its slots, since all runs may want it. "
        "Then the step goes to the least loaded one and its context is read again.",
    )
    wait: bool = Field(
        default=True,
        description="A step whose worker has no free slot and is not overloaded waits for it. Off: it goes to the "
        "least loaded one.",
    )
    agree: bool = Field(
        default=False,
        description="For several processes that send to the same engines: a prompt that this one has sent nowhere "
        "yet goes where its first 1,024 bytes say (rendezvous hashing, Thaler and Ravishankar, 1998), so that all "
        "have the same place for the same beginning though none tells another. The workers need the same names in all.",
    )

    def place(self, step: StepView, view: View) -> Pin | Defer | None:
        """Return the worker where the context is cached, or `None` without a preference."""
        if step.kind != "think":
            return None
        # A continuing step has its context on the worker of the step before; no other worker can match that.
        cached = {} if step.home is not None else view.cached(step)
        wanted, of_run = self._preferred_worker(step, view, cached)
        if wanted is None or not wanted.up:
            return None
        idlest = view.idlest(step)
        least = idlest.busy if idlest is not None else 0
        # Another prefill elsewhere takes less time than waiting here; the context is then cached there too.
        if is_overloaded(wanted.busy, least, wanted.slots, self.overload, self.slack, shared=not of_run):
            return None
        if wanted.takes(step):
            return Pin(wanted.name, f"{wanted.name} has its context cached")
        # A worker that serves another model will never have a slot for it.
        if not self.wait or not wanted.could_take(step):
            return None
        reason = f"waits for {wanted.name}, which has its context cached"
        # A slot is free after about expected / slots decoding steps; a worker prefills `_READ_TOKENS` in one such step.
        if cached.get(wanted.name, 0) * wanted.slots >= _READ_TOKENS * view.expected_tokens(step):
            return Defer(reason, worker=wanted.name)
        return Defer(reason, behind=wanted.name) if of_run else None

    def _preferred_worker(
        self, step: StepView, view: View, cached: Mapping[str, int]
    ) -> tuple[WorkerView | None, bool]:
        """Return the worker that a step should go to, and whether a step of its own run determined it."""
        if step.home is not None:
            return view.worker(step.home), True
        sent = step.siblings.sent

        def load(name: str) -> int | None:
            worker = view.worker(name)
            return worker.busy if worker is not None and worker.could_take(step) else None

        holder = choose_holder(cached, step.prompt_tokens, _CACHED_TOKENS, load)
        if holder is not None:
            return view.worker(holder), holder in sent
        name = max(sent, key=lambda worker: sent[worker], default=None)
        if name is None and self.agree and step.beginning is not None:
            able = (worker.name for worker in view.workers if worker.up and worker.could_take(step))
            name = choose_by_hash(able, step.beginning)
            return (view.worker(name) if name is not None else None), False
        return (view.worker(name) if name is not None else None), True


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

    quantile: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Which quantile counts: a straggler runs longer than it, of like steps.",
    )
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
        "of that time, and at most a second.",
    )

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
        soon = view.now + max(self.interval, min(longest * _SHARE, 1.0))
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
        return quantile(times, self.quantile), self.slow * quantile(speeds or [0.0], 0.5)

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
