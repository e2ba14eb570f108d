"""Stop rule `cges`: end the vote when one answer is very likely right, given how sure the model was of each vote."""

from __future__ import annotations

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.view import Branch

from .._ballots import Signal
from .._posterior import AnswerPosterior, vote_confidence
from .._stopping import Poll, StopRule

__all__ = ["CGES"]


class CGES(StopRule):
    """Confidence-Guided Early Stopping (arXiv 2511.02603): a posterior over the answers from the votes' confidence.

    A vote for answer A of confidence c has the likelihood c if A is right, and (1 - c) / (K - 1) if another of the K
    answers is; all have the same prior. K counts the answers seen and one unseen answer. The vote ends when an
    answer's posterior reaches `confidence`. c = exp(`criterion` / `vote_temperature`), by default the geometric mean of
    the tokens' probabilities.

    Differs from the paper, where the posterior also picks the answer: here the vote's merge does, so by default the
    answer must be the first by votes too. With the merge `posterior` and `lead=false` it is the paper's method. Needs
    `logprobs` of the planner.
    """

    fidelity = Fidelity("variant", "the answer must be first by votes too", paper="2511.02603")

    confidence: float = Field(
        default=0.99,
        gt=0.5,
        lt=1.0,
        description="Probability at which something counts as sure: the posterior at which to stop.",
    )
    criterion: Signal = Field(
        default="logprob",
        description="What decides: a signal, in nats; only one that is never positive is a log-probability.",
    )
    vote_temperature: float = Field(
        default=0.33,
        gt=0.0,
        description="Temperature of the votes' confidence: below 1 it makes them less sure. Mean log-probabilities "
        "of tokens are surer than answers are: with 1 and a confidence of 0.95 a vote lost 4.5 points on one of four "
        "voters (study `erring-votes`).",
    )
    min_votes: int = Field(default=2, ge=1, description="Votes below which not to stop.")
    lead: bool = Field(default=True, description="Whether the answer must also be the first by votes.")

    def enough(self, poll: Poll) -> str | None:
        """Return the posterior, once it is high enough."""
        if poll.votes < self.min_votes:
            return None
        chances = poll.fold(self, lambda: _Chances(self)).posterior.chances()
        if not chances:
            return None
        best = max(chances, key=lambda key: chances[key])
        leads = not self.lead or poll.counts[best] == poll.lead()[0]
        enough = leads and chances[best] >= self.confidence
        return f"an answer has the posterior {chances[best]:.4g}" if enough else None


class _Chances:
    """The posterior of a running vote."""

    def __init__(self, rule: CGES) -> None:
        self._rule = rule
        self.posterior = AnswerPosterior()

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is not None and branch.done and branch.result is not None:
            self.posterior.add(
                key, vote_confidence(branch.result, self._rule.criterion, self._rule.vote_temperature), votes
            )
