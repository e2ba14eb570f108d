"""Stop rule `confident`: end the vote when the model was sure enough of one answer."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.errors import PluginError

from .._ballots import Signal, signal
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

    by: Signal = "logprob"
    """Which signal; of `entropy` low is sure, of all others high."""
    floor: float = Field(default=-0.01, allow_inf_nan=False)
    """Least value at which a vote ends the vote (of `entropy` the negative of the highest), in nats."""
    votes: int = Field(default=1, ge=1)
    """Sure votes that the answer must have."""

    def enough(self, poll: Poll) -> str | None:
        """Return how sure it was, once that is sure enough."""
        ballots = poll.roll.ballots
        sure: dict[str, list[float]] = {}
        said = False
        for ballot in ballots:
            value = signal(ballot.result, self.by)
            said = said or value is not None
            if value is not None and math.isfinite(value) and value >= self.floor:
                sure.setdefault(ballot.key, []).append(value)
        if ballots and not said:
            raise PluginError(f"no branch says its {self.by}: ask for it with logprobs in the planner's options")
        top, _ = poll.lead()
        for key, values in sure.items():
            if len(values) >= self.votes and poll.counts[key] == top:
                return f"{self.by} {max(values):.4g} of a voter for the first answer is at least {self.floor:g}"
        return None
