"""Stop rule `deepconf-consensus`: end the vote when nearly all of its weight is on one answer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.view import Branch
from plait.policies._stopping import Poll, StopRule

__all__ = ["DeepConfConsensus"]

By = Literal["votes", "mean", "tail", "bottom", "lowest"]


class DeepConfConsensus(StopRule):
    """The consensus stop of DeepConf (arXiv 2508.15260): the vote ends when the first answer's share of all weight,
    V(a) / sum of V, is at least `tau`, after a warm-up of `min_votes` votes (N_init of the paper).

    A vote weighs its trace's confidence (`criterion`). Where a voter does not say it (no `logprobs` were asked for),
    all weigh the same: the share of the votes then decides.
    """

    fidelity = Fidelity("exact", paper="2508.15260")

    tau: float = Field(default=0.95, gt=0.5, le=1.0, description="Share at which to stop.")
    min_votes: int = Field(default=16, ge=1, description="Votes below which not to stop.")
    criterion: By = Field(default="lowest", description="What decides: the statistic that weighs; `votes`: none.")

    def enough(self, poll: Poll) -> str | None:
        """Return the share, once it is high enough."""
        if poll.votes < self.min_votes:
            return None
        counts: Iterable[float] = poll.counts.values()
        if self.criterion != "votes":
            weighed = poll.fold(self, lambda: _Weights(self.criterion))
            counts = weighed.weights.values() if weighed.all else counts
        total = math.fsum(counts)
        share = max(counts) / total if total > 0.0 else 0.0
        return f"{share:.4g} of the weight of {poll.votes} votes is on one answer" if share >= self.tau else None


class _Weights:
    """What the answers weigh."""

    def __init__(self, by: By) -> None:
        self._name = "confidence" if by == "mean" else by
        self.all = True
        """Whether every voter says its confidence."""
        self.weights: dict[str, float] = {}
        """By key."""

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is None or not branch.done or branch.result is None:
            return
        signals = branch.result.signals
        self.all = self.all and signals is not None
        if signals is not None:
            self.weights[key] = self.weights.get(key, 0.0) + votes * float(getattr(signals, self._name))
