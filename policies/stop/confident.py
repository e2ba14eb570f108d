"""Stop rule `confident`: enough votes, if the model was sure enough of one. Does not know whether it had reason to be.

Decides from the signals that come with each result, and from nothing else that a vote says.
"""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.errors import PluginError

from .._ballots import Signal, signal
from .._stopping import Poll, StopRule

__all__ = ["Confident"]


class Confident(StopRule):
    """The vote ends when a branch has an answer of which the model was sure, and no other answer has more votes: early
    stopping by confidence, as in Self-Calibration (Huang et al., arXiv 2503.00031).

    What differs from the paper: there a model is trained to say how sure it is of its answer; here a signal of the
    generation stands for that, by default the mean log-probability of its tokens (`logprobs=1` of the planner). Where
    the threshold lies depends on model, temperature and task: choose it on answers that you can check. Goes with a rule
    for the answers that no branch was sure of (`adaptive-consistency`, `first-finish`). Voters without the signal do
    not end a vote; where none has it the run fails.
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
