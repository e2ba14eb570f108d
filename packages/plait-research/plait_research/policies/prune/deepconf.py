"""DeepConf: `deepconf` stops a branch while it is written, and `deepconf-consensus` ends the vote."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PrivateAttr

from plait.core.declarations import Fidelity
from plait.core.errors import PluginError
from plait.core.events import Event, Failed, Progressed, Succeeded
from plait.core.interfaces import Defer, Policy, Stop
from plait.core.task import Task
from plait.core.view import Branch, StepView, View
from plait.policies._ballots import percentile
from plait.policies._stopping import Poll, StopRule, tolerant_votes

__all__ = ["DeepConf", "DeepConfConsensus"]


_KEPT = 1024


@dataclass(slots=True)
class _VoteFacts:
    """Cached facts about one vote; they can be computed again at any time."""

    task: weakref.ref[Task]
    warm: frozenset[str]
    """Ids of the branches of the warm-up."""
    waits_for: str | None = None
    """A branch of the warm-up that had not ended at the last check."""
    floor: float | None = None
    """The threshold; `None` also if no branch of the warm-up ended in a value."""


class DeepConf(Policy):
    """DeepConf online (Fu et al., arXiv 2508.15260).

    The first `warmup` branches of a vote, in the join's order, run to their ends. The threshold is the percentile 100 -
    `eta` of their lowest group confidences; every other branch is cancelled as soon as the mean confidence of a full
    window is below it. `eta=10` is DeepConf-low (90th percentile, most branches are stopped), `eta=90` DeepConf-high.
    In the study `erring-votes`, 10 lost 28 points against the full vote, since hard questions have low confidence; 90,
    the default as in the authors' package, stopped hardly any branch. Use it with `merge=weighted:criterion=lowest`
    with the same `eta` and `warmup`, and the stop rule `deepconf-consensus`.

    Needs branches that report their confidence: `logprobs=20` and a `window` of the planner. The paper's window is
    2,048 tokens; for small models use 10 to 25 per cent of the median length, at least 8. A branch shorter than a
    window has no full window and is never stopped. It affects only joins that count votes and tolerate a missing branch
    (`best-effort`).
    """

    fidelity = Fidelity("exact", oracles=("deepconf-traces", "deepconf-online"), paper="2508.15260")
    lost_in = ("erring_votes", "votes_live")

    warmup: int = Field(
        default=16,
        ge=1,
        description="Number of branches that run to their ends first: they set the threshold (N_init).",
    )
    eta: float = Field(
        default=90.0,
        gt=0.0,
        lt=100.0,
        description="Per cent of the branches to keep: the threshold is the percentile 100 - eta.",
    )
    hold: bool = Field(
        default=True,
        description="Let no other branch start before the warm-up is over, as in the paper. Off: they start when "
        "there is room, and are measured by the threshold once it is known.",
    )

    _votes: dict[str, _VoteFacts] = PrivateAttr(default_factory=dict[str, _VoteFacts])

    def place(self, step: StepView, view: View) -> Defer | None:
        """Defer a branch outside the warm-up until the warm-up is over."""
        if not self.hold:
            return None
        for join in tolerant_votes(step):
            known = self._facts(join, view)
            if step.id not in known.warm and known.waits_for is not None:
                return Defer(f"the warm-up of {join.plan.name} is not over", behind=join.id)
        return None

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Stop a branch when its lowest group confidence falls below the threshold. When the last warm-up branch ends,
        stop every branch already below it."""
        subject = view.subject
        if subject is None:
            return ()
        if isinstance(event, Progressed):
            if event.lowest is None:
                return ()
            return [stop for join in tolerant_votes(subject) for stop in self._stop_below(join, [subject], view)]
        if not isinstance(event, Succeeded | Failed):
            return ()
        stops: list[Stop] = []
        for join in tolerant_votes(subject):
            if subject.id in self._facts(join, view).warm:
                stops += self._stop_below(join, join.needs, view)
        return stops

    def _stop_below(self, join: StepView, steps: Sequence[StepView], view: View) -> Iterator[Stop]:
        known = self._facts(join, view)
        if known.waits_for is not None or known.floor is None:
            return
        for step in steps:
            lowest = step.lowest
            if step.state.ended or step.id in known.warm or lowest is None or lowest >= known.floor:
                continue
            # Another step may need the branch, whatever its confidence.
            if all(reader == join for reader in step.consumers):
                why = f"{join.plan.name}: confidence {lowest:.4g} is below {known.floor:.4g}"
                yield Stop(step.id, f"{why}, the {100 - self.eta:g}th percentile of {len(known.warm)} branches")

    def _facts(self, join: StepView, view: View) -> _VoteFacts:
        """Return the cached facts about a vote. They are recomputed only when the branch that they wait for has
        ended."""
        task, known = view.task(join.run), self._votes.get(join.id)
        # A replay may run the same id again, so the id alone does not identify a run.
        if known is None or known.task() is not task:
            # Old votes are dropped, since their facts can be recomputed and a process may run for months.
            if len(self._votes) >= _KEPT:
                self._votes.clear()
            warm = frozenset(step.id for step in join.needs[: self.warmup])
            known = self._votes[join.id] = _VoteFacts(weakref.ref(task), warm, waits_for="")
        if known.waits_for is None:
            return known
        at = view.step(known.waits_for)
        if at is not None and not at.state.ended:
            return known
        warm = join.needs[: self.warmup]
        known.waits_for = next((step.id for step in warm if not step.state.ended), None)
        if known.waits_for is None:
            known.floor = self._floor(warm)
        return known

    def _floor(self, warm: Sequence[StepView]) -> float | None:
        results = [step.result for step in warm if step.result is not None]
        lowest = [result.signals.lowest for result in results if result.signals is not None]
        # Without signals the policy would seem to work but stop nothing.
        if results and not lowest:
            raise PluginError("no branch says its confidence: set logprobs=20 and a window in the planner")
        return percentile(lowest, 100.0 - self.eta) if lowest else None


By = Literal["votes", "mean", "tail", "bottom", "lowest"]


class DeepConfConsensus(StopRule):
    """The consensus stop of DeepConf (arXiv 2508.15260): the vote ends when the first answer's share of all weight,
    V(a) / sum of V, is at least `tau`, after a warm-up of `min_votes` votes (N_init of the paper).

    A vote weighs its trace's confidence (`criterion`). If a voter has no confidence (no `logprobs` requested), all
    votes have equal weight: the share of the votes then decides.
    """

    fidelity = Fidelity("formula", paper="2508.15260")

    tau: float = Field(default=0.95, gt=0.5, le=1.0, description="Share at which to stop.")
    min_votes: int = Field(default=16, ge=1, description="Votes below which not to stop.")
    criterion: By = Field(default="lowest", description="Criterion: the statistic that weighs; `votes`: none.")

    def enough(self, poll: Poll) -> str | None:
        """Return the share as soon as it is high enough."""
        if poll.votes < self.min_votes:
            return None
        counts: Iterable[float] = poll.counts.values()
        if self.criterion != "votes":
            weighed = poll.fold(self, lambda: _Weights(self.criterion))
            counts = weighed.weights.values() if weighed.all else counts
        total = math.fsum(counts)
        share = max(counts) / total if total > 0.0 else 0.0
        return f"{share:.4g} of the weight of {poll.votes} votes is on one answer" if share >= self.tau else None


class _Weights:
    """The weights of the answers."""

    def __init__(self, by: By) -> None:
        self._name = "confidence" if by == "mean" else by
        self.all = True
        """Whether every voter reports its confidence."""
        self.weights: dict[str, float] = {}
        """By key."""

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is None or not branch.done or branch.result is None:
            return
        signals = branch.result.signals
        self.all = self.all and signals is not None
        if signals is not None:
            self.weights[key] = self.weights.get(key, 0.0) + votes * float(getattr(signals, self._name))
