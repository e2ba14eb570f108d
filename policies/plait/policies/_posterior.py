"""The posterior over the answers of a vote, given the model's confidence in each vote. The rule `cges` and the merge
`posterior` use it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from plait.core.errors import PluginError
from plait.core.result import Result

from ._ballots import Signal, confidence_signal

EDGE = 1e-3
"""Votes' confidence is clipped to the range from EDGE to 1 - EDGE."""


def vote_confidence(result: Result, by: Signal, temperature: float) -> float:
    """Return c = exp(signal / temperature) of a vote, within `EDGE` of 0 and 1. Raises `PluginError` without the
    signal."""
    value = confidence_signal(result, by)
    if value is None:
        raise PluginError(f"a branch does not say its {by}: ask for it with logprobs in the planner")
    return min(max(math.exp(min(0.0, value) / temperature), EDGE), 1 - EDGE)


class AnswerPosterior:
    """The probability of each answer being right, under a uniform prior (CGES, arXiv 2511.02603).

    A vote for answer A of confidence c has the likelihood c if A is right, and (1 - c) / (K - 1) if another of the K
    answers is. K counts the answers seen and one unseen answer.
    """

    def __init__(self) -> None:
        self.votes: dict[str, int] = {}
        """Votes of an answer, by its key."""
        self._wrong = 0.0
        """Sum of ln(1 - c) of all votes."""
        self._own: dict[str, float] = {}
        """Sum of ln c - ln(1 - c) of the votes for an answer, by its key."""

    def add(self, key: str, sure: float, votes: int = 1) -> None:
        """Count votes for an answer, of confidence `sure` each."""
        wrong = math.log(1 - sure)
        self._wrong += votes * wrong
        self._own[key] = self._own.get(key, 0.0) + votes * (math.log(sure) - wrong)
        self.votes[key] = self.votes.get(key, 0) + votes

    def chances(self) -> Mapping[str, float]:
        """Return the posterior of each answer seen, by its key. The remainder up to 1 belongs to the unseen answer."""
        spread = math.log(max(1, len(self._own)))  # of K - 1: those seen but one, and the unseen one
        none = self._wrong - sum(self.votes.values()) * spread
        logs = {key: none + more + self.votes[key] * spread for key, more in self._own.items()}
        top = max([*logs.values(), none])
        total = math.fsum(math.exp(log - top) for log in [*logs.values(), none])
        return {key: math.exp(log - top) / total for key, log in logs.items()}
