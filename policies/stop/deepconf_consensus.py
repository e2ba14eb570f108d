"""Stop rule `deepconf-consensus`: end the vote when nearly all of its weight is on one answer."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from .._ballots import classes
from .._stopping import Poll, StopRule

__all__ = ["DeepConfConsensus"]

By = Literal["votes", "mean", "tail", "bottom", "lowest"]


class DeepConfConsensus(StopRule):
    """The consensus stop of DeepConf (arXiv 2508.15260): the vote ends when the first answer's share of all weight,
    V(a) / sum of V, is at least `tau`, after a warm-up of `warmup` votes (N_init of the paper).

    A vote weighs its trace's confidence (`by`). Where a voter does not say it (no `logprobs` were asked for), all
    weigh the same: the share of the votes then decides.
    """

    tau: float = Field(default=0.95, gt=0.5, le=1.0)
    """Share at which to stop."""
    warmup: int = Field(default=16, ge=1)
    """Votes below which not to stop."""
    by: By = "lowest"
    """Which statistic weighs; `votes`: none."""

    def enough(self, poll: Poll) -> str | None:
        """Return the share, once it is high enough."""
        if poll.votes < self.warmup:
            return None
        name = {"mean": "confidence"}.get(self.by, self.by)
        weights: list[float] = [float(votes) for votes in poll.counts.values()]
        if self.by != "votes" and all(ballot.result.signals for ballot in poll.roll.ballots):
            counted = classes(poll.roll.ballots, lambda ballot: float(getattr(ballot.result.signals, name)))
            weights = [each.weight for each in counted]
        total = math.fsum(weights)
        share = max(weights) / total if total > 0.0 else 0.0
        return f"{share:.4g} of the weight of {poll.votes} votes is on one answer" if share >= self.tau else None
