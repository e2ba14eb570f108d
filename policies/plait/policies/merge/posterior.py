"""Merge `posterior`: the answer that is most likely right, given how sure the model was of each vote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import Class, OpenTally, Signal, build_verdict, list_absent, no_vote_verdict, read_roll
from .._posterior import AnswerPosterior as Chances, vote_confidence

__all__ = ["Posterior"]


class Posterior(Merge):
    """The choice of Confidence-Guided Early Stopping (arXiv 2511.02603): the answer of the highest posterior.

    A vote of confidence c has the likelihood c if its answer is right, and (1 - c) / (K - 1) if another of K answers
    is; c = exp(`criterion` / `vote_temperature`), by default the geometric mean of the tokens' probabilities
    (`logprobs=1` of the planner). Many unsure votes can outweigh a sure one, and one sure vote many unsure ones: as
    good as the model knows when it is right. Goes with the stop rule `cges:lead=false`. Ties go to the answer with more
    votes, then to the one whose first voter comes earliest.
    """

    fidelity = Fidelity("exact", paper="2511.02603")

    votes: ClassVar[bool] = True

    criterion: Signal = Field(
        default="logprob",
        description="What decides: a signal, in nats; only one that is never positive is a log-probability.",
    )
    vote_temperature: float = Field(
        default=1.0, gt=0.0, description="Temperature of the votes' confidence: below 1 it makes them less sure."
    )

    def tally(self, task: Task) -> OpenTally:
        """Return an empty tally for the rules that stop votes."""
        return OpenTally(task)

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the posterior and the votes."""
        roll = read_roll(branches, task)
        if not roll.ballots:
            return no_vote_verdict(roll)
        chances, first = Chances(), dict[str, Class]()
        for ballot in roll.ballots:
            chances.add(ballot.key, vote_confidence(ballot.result, self.criterion, self.vote_temperature), ballot.count)
            first.setdefault(ballot.key, Class(ballot))
        posterior = chances.chances()
        best = min(first, key=lambda key: (-posterior[key], -chances.votes[key], first[key].first.place))
        why = f"posterior {posterior[best]:.4g}, {chances.votes[best]} of {roll.votes} votes"
        return build_verdict(first[best], why, roll, list_absent(roll))
