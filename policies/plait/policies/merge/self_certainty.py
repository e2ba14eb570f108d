"""Merge `self-certainty`: votes weigh by the rank of the model's self-certainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import OpenTally, measure_ballots, read_roll, weigh_votes

__all__ = ["SelfCertainty"]


class SelfCertainty(Merge):
    """Borda voting by self-certainty (Kang et al., arXiv 2502.18581).

    Self-certainty is the mean over tokens of KL(uniform || p), which needs the whole vocabulary (`logprobs=-1` of the
    planner). Of N voters the r-th most certain (equals in the join's order) weighs (N - r + 1)^p. Voters without it are
    left out, and where none has it the join fails. Ties go to the answer with more votes, then to the earliest.
    """

    fidelity = Fidelity("exact", paper="2502.18581")

    votes: ClassVar[bool] = True

    p: float = Field(
        default=1.2,
        ge=0.0,
        description="Exponent: 0 is the majority, and the larger it is, the more the certain ones decide.",
    )

    def tally(self, task: Task) -> OpenTally:
        """Return an empty tally for the rules that stop votes."""
        return OpenTally(task)

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has weights, margin, votes and who was left out."""
        remedy = "ask for the whole vocabulary with logprobs=-1 in the planner's options"
        roll, certain, left_out = measure_ballots(
            read_roll(branches, task),
            lambda result: result.signals.certainty if result.signals else None,
            "self-certainty",
            remedy,
        )
        order = sorted(certain, key=lambda place: (-certain[place], place))
        weights = {place: float(len(order) - at) ** self.p for at, place in enumerate(order)}
        return weigh_votes(roll, lambda ballot: weights[ballot.place], "Borda weight", left_out)
