"""Merge `inverse-entropy`: a vote weighs the more, the lower the entropy of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import OpenTally, clip, measure_ballots, read_roll, weigh_votes

__all__ = ["InverseEntropy"]


class InverseEntropy(Merge):
    """Inverse-entropy weighted voting (Sequential Edge, arXiv 2511.02309): w = 1 / max(H, floor).

    H is the mean entropy of a branch's tokens in bits (`logprobs=20` of the planner; what the k likeliest tokens leave
    out counts as one outcome). The paper's floor is 1e-10; then a trace written with near certainty, such as a loop,
    weighs more than all others together. So the floor is 0.05 bit here, and `cap` bounds a weight by the median's
    multiple (`cap=null`, `floor=1e-10` is the paper's rule). Ties go to the answer with more votes, then the earliest.
    """

    fidelity = Fidelity("variant", "a floor and a cap on weights", paper="2511.02309")

    votes: ClassVar[bool] = True

    floor: float = Field(default=0.05, gt=0.0, description="Least entropy that counts, in bits.")
    cap: float | None = Field(
        default=4.0,
        ge=1.0,
        description="Most (and one over it: least) that a weight may be of the voters' median weight.",
    )

    def tally(self, task: Task) -> OpenTally:
        """Return an empty tally for the rules that stop votes."""
        return OpenTally(task)

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has weights, margin, votes and who was left out."""
        remedy = "ask for it with logprobs=20 in the planner's options"
        roll, entropy, left_out = measure_ballots(
            read_roll(branches, task),
            lambda result: result.signals.entropy if result.signals else None,
            "entropy",
            remedy,
        )
        weights = {place: 1.0 / max(nats / math.log(2.0), self.floor) for place, nats in entropy.items()}
        weights = clip(weights, self.cap)
        return weigh_votes(roll, lambda ballot: weights[ballot.place], "inverse entropy", left_out)
