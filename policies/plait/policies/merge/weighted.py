"""Merge `weighted`: weigh each vote by the model's confidence while it wrote the branch (`Signals`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from plait.core.declarations import Fidelity, Free
from plait.core.interfaces import Merge, Verdict
from plait.core.result import Result
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import (
    OpenVote,
    Roll,
    clip,
    drop_ballots,
    format_names,
    measure_ballots,
    percentile,
    read_roll,
    weigh_votes,
)

__all__ = ["Weighted"]

By = Literal["mean", "tail", "bottom", "lowest"]


class Weighted(OpenVote, Merge):
    """DeepConf's confidence-weighted vote (arXiv 2508.15260): an answer's weight is the sum of its voters' confidence.

    Needs `logprobs=20` and a `window` of the planner; voters without a confidence are left out, and if none has one the
    join fails. The heaviest answer wins, even against the majority (`why` then reports it). Ties go to the answer with
    more votes, then to the answer whose first voter comes earliest.

    Only voters whose score reaches the percentile 100 - `eta` of all scores are kept (DeepConf offline), or, with
    `warmup`, of the lowest-group scores of the first `warmup` branches (DeepConf online, together with the policy
    `deepconf` and the same `eta` and `warmup`).

    Differs from the paper: `cap` limits every weight to a multiple of the median, so one degenerate trace (loops are
    written with near certainty) cannot outvote the others. `cap=null` is the paper's rule.
    """

    fidelity = Fidelity(
        "variant", "a cap on weights, without it as theirs", oracles=("deepconf-offline",), paper="2508.15260"
    )

    criterion: By = Field(
        default="tail",
        description="What decides: the statistic that weighs, the mean, that of the last window (`tail`), of the "
        "lowest tenth of the windows (`bottom`) or of the lowest window.",
    )
    eta: float = Field(
        default=100.0, gt=0.0, le=100.0, description="Per cent of the branches to keep; the paper uses 10 and 90."
    )
    warmup: Annotated[int, Free()] = Field(
        default=0,
        ge=0,
        description="Number of branches that run to their ends first: their lowest-group scores set the threshold; 0: "
        "all voters, by their own scores.",
    )
    cap: float | None = Field(
        default=4.0,
        ge=1.0,
        description="Most (and one over it: least) that a weight may be of the voters' median weight.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has weights, margin, votes and who was left out."""
        remedy = "ask for it with logprobs=20 (and a window) in the planner's options"
        roll = read_roll(branches, task)
        roll, scores, left_out = measure_ballots(
            roll, lambda result: score(result, self.criterion), "confidence", remedy
        )
        roll, filtered = self._filter(roll, scores, branches)
        weights = clip({ballot.place: scores[ballot.place] for ballot in roll.ballots}, self.cap)
        what = f"{self.criterion} confidence"
        return weigh_votes(roll, lambda ballot: weights[ballot.place], what, [*left_out, *filtered])

    def _filter(self, roll: Roll, scores: dict[int, float], branches: Sequence[Branch]) -> tuple[Roll, list[str]]:
        if self.eta >= 100.0 or not roll.ballots:
            return roll, []
        floor = None
        if self.warmup:
            floor = threshold(branches, self.warmup, self.eta)
            scores = {ballot.place: score(ballot.result, "lowest") or 0.0 for ballot in roll.ballots}
        if floor is None:
            floor = percentile(list(scores.values()), 100.0 - self.eta)
        kept, out = drop_ballots(roll, lambda ballot: scores[ballot.place] >= floor)
        if not kept.ballots:  # No ballot may reach the threshold: a vote of all is better than no vote.
            return roll, ["the filter would have left no ballot and is ignored"]
        return kept, [f"below {floor:.4g}: {format_names(out)}"] if out else []


def score(result: Result, by: By) -> float | None:
    """Return a statistic of a result's confidence in nats, or `None` if the result has none."""
    signals = result.signals
    if signals is None:
        return None
    match by:
        case "mean":
            return signals.confidence
        case "tail":
            return signals.tail
        case "bottom":
            return signals.bottom
        case "lowest":
            return signals.lowest


def threshold(branches: Sequence[Branch], warmup: int, eta: float) -> float | None:
    """Return the percentile 100 - `eta` of the lowest-group scores of the first `warmup` branches, or `None` if these
    have no scores."""
    lowest = [branch.result.signals.lowest for branch in branches[:warmup] if branch.result and branch.result.signals]
    return percentile(lowest, 100.0 - eta) if lowest else None
