"""Stop rules that use the model's confidence in its votes: `cges`, `confident`."""

from __future__ import annotations

import math
from collections import Counter

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.errors import PluginError
from plait.core.view import Branch

from .._ballots import Signal, confidence_signal
from .._posterior import AnswerPosterior, vote_confidence
from .._stopping import Poll, StopRule

__all__ = ["CGES", "Confident"]


class CGES(StopRule):
    """Confidence-Guided Early Stopping (arXiv 2511.02603): a posterior over the answers from the votes' confidence.

    A vote for answer A of confidence c has the likelihood c if A is right, and (1 - c) / (K - 1) if another of the K
    answers is; all have the same prior. K counts the answers seen and one unseen answer. The vote ends when an
    answer's posterior reaches `confidence`. c = exp(`criterion` / `vote_temperature`), by default the geometric mean of
    the tokens' probabilities.

    Differs from the paper, where the posterior also chooses the answer: here the vote's merge chooses, so by default
    the answer must also lead by votes. The merge `posterior` with `lead=false` is the paper's method. Needs `logprobs`
    of the planner.
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
        """Return the posterior as soon as it is high enough."""
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


class Confident(StopRule):
    """Early stopping by confidence, as in Self-Calibration (Huang et al., arXiv 2503.00031): the vote ends when the
    model was sure of a branch's answer and no other answer has more votes.

    Differs from the paper, which trains a model to state its confidence: here confidence is a signal of the generation,
    by default the mean log-probability of the tokens (`logprobs=1` of the planner). The right threshold depends on
    model, temperature and task: choose it on answers that you can check. Use it beside `adaptive-consistency` or
    `first-finish` for votes without a sure branch. Voters without the signal do not end a vote; the run fails if no
    voter has it.
    """

    fidelity = Fidelity("variant", "a signal of the generation, not a trained statement", paper="2503.00031")

    criterion: Signal = Field(
        default="logprob", description="What decides: a signal; of `entropy` low is sure, of all others high."
    )
    threshold: float = Field(
        default=-0.01,
        allow_inf_nan=False,
        description="Threshold of a score: the signal of a sure vote (of `entropy` its negative), in nats.",
    )
    votes: int = Field(default=1, ge=1, description="Votes for one answer at which to stop: sure ones.")

    def enough(self, poll: Poll) -> str | None:
        """Return the confidence as soon as it reaches the threshold."""
        sure = poll.fold(self, lambda: _Sure(self))
        # Without this error, a missing signal would look like a vote that is never sure.
        if sure.voters and not sure.said:
            raise PluginError(f"no branch says its {self.criterion}: ask for it with logprobs in the planner's options")
        # Another answer has more votes: the vote continues.
        if sure.most and sure.most == poll.lead()[0]:
            sureness = sure.values[sure.first]
            return f"{self.criterion} {sureness:.4g} of a voter for the first answer is at least {self.threshold:g}"
        return None


class _Sure:
    """The answers with sure votes."""

    def __init__(self, rule: Confident) -> None:
        self._rule = rule
        self.voters = 0
        self.said = False
        """Whether a voter has the signal."""
        self.most = 0
        """Highest number of votes of an answer with enough sure votes."""
        self.first = ""
        """Key of the answer with these votes."""
        self.values: dict[str, float] = {}
        """The surest vote's signal, by key of the answer."""
        self._votes: Counter[str] = Counter()
        self._sure: Counter[str] = Counter()

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is None or not branch.done or branch.result is None:
            return
        rule = self._rule
        value = confidence_signal(branch.result, rule.criterion)
        self.voters += 1
        self.said = self.said or value is not None
        self._votes[key] += votes
        if value is not None and math.isfinite(value) and value >= rule.threshold:
            self._sure[key] += 1
            self.values[key] = max(value, self.values.get(key, value))
        if self._sure[key] >= rule.votes and self._votes[key] > self.most:
            self.most, self.first = self._votes[key], key
