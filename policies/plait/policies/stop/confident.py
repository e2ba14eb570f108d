"""Stop rule `confident`: end the vote when the model was sure enough of one answer."""

from __future__ import annotations

import math
from collections import Counter

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.errors import PluginError
from plait.core.view import Branch

from .._ballots import Signal, confidence_signal
from .._stopping import Poll, StopRule

__all__ = ["Confident"]


class Confident(StopRule):
    """The vote ends when the model was sure of a branch's answer and no other answer has more votes: early stopping by
    confidence, as in Self-Calibration (Huang et al., arXiv 2503.00031).

    Differs from the paper, which trains a model to state its confidence: here it is a signal of the generation, by
    default the mean log-probability of the tokens (`logprobs=1` of the planner). The right threshold depends on model,
    temperature and task: choose it on answers that you can check. Use it beside `adaptive-consistency` or
    `first-finish` for votes without a sure branch. Voters without the signal do not end a vote; if none has it the run
    fails.
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
        """Return how sure it was, once that is sure enough."""
        sure = poll.fold(self, lambda: _Sure(self))
        # A threshold that nothing can reach would look like a vote that is never sure.
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
        """Most votes of an answer that has enough sure ones."""
        self.first = ""
        """Key of that answer."""
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
