"""Stop rule `cges`: end the vote when one answer is very likely right, given how sure the model was of each vote."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.errors import PluginError
from plait.core.view import Branch

from .._ballots import Signal, signal
from .._stopping import Poll, StopRule

__all__ = ["CGES"]

EDGE = 1e-3
"""A vote is never taken for surer than 1 - EDGE, nor for less sure than EDGE."""


class CGES(StopRule):
    """Confidence-Guided Early Stopping (arXiv 2511.02603): a posterior over the answers from the votes' confidence.

    A vote for answer A of confidence c has the likelihood c if A is right, and (1 - c) / (K - 1) if another of the K
    answers is; all have the same prior. K counts the answers seen and one that nobody has given. The vote ends when an
    answer's posterior reaches `threshold`, if it is also the first by votes. c = exp(`by` / `temperature`), by default
    the geometric mean of the tokens' probabilities.

    Differs from the paper: the full vote's merge decides, not the posterior. Needs `logprobs` of the planner.
    """

    threshold: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Posterior at which to stop."""
    by: Signal = "logprob"
    """Which signal, in nats; only one that is never positive is a log-probability."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Of the confidence: below 1 it makes votes less sure."""
    least: int = Field(default=2, ge=1)
    """Votes below which not to stop."""

    def enough(self, poll: Poll) -> str | None:
        """Return the posterior, once it is high enough."""
        if poll.votes < self.least:
            return None
        seen = poll.fold(self, lambda: _Likelihoods(self))
        spread = math.log(len(poll.counts))  # of K - 1: those seen but one, and one that nobody has given
        every = seen.wrong - seen.votes * spread
        logs = {key: every + more + poll.counts[key] * spread for key, more in seen.own.items()}
        best = max(logs, key=lambda key: logs[key])
        top = max(logs[best], every)
        posterior = math.exp(logs[best] - top) / math.fsum(math.exp(each - top) for each in [*logs.values(), every])
        leads = poll.counts[best] == poll.lead()[0]
        return f"an answer has the posterior {posterior:.4g}" if leads and posterior >= self.threshold else None


class _Likelihoods:
    """Sums over the votes, without what depends on how many answers there are."""

    def __init__(self, rule: CGES) -> None:
        self._rule = rule
        self.votes = 0
        self.wrong = 0.0
        """Of ln(1 - c) of all votes."""
        self.own: dict[str, float] = {}
        """Of ln c - ln(1 - c) of the votes for an answer, by its key."""

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is None or not branch.done or branch.result is None:
            return
        rule = self._rule
        value = signal(branch.result, rule.by)
        if value is None:
            raise PluginError(f"a branch does not say its {rule.by}: ask for it with logprobs in the planner")
        sure = min(max(math.exp(min(0.0, value) / rule.temperature), EDGE), 1 - EDGE)
        wrong = math.log(1 - sure)
        self.votes += votes
        self.wrong += votes * wrong
        self.own[key] = self.own.get(key, 0.0) + votes * (math.log(sure) - wrong)
