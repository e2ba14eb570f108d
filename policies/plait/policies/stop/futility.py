"""Stop rule `futility`: end the vote when none of many branches had an answer."""

from __future__ import annotations

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.sampling_theory import beta_mean
from plait.core.view import Branch

from .._stopping import Poll, StopRule

__all__ = ["Futility"]


class Futility(StopRule):
    """Stopping for futility, as in sequential trials: after many branches without an answer the next one will
    hardly have one.

    After n branches without an answer the next one has one with probability 1 / (n + 2): the posterior Beta(1, 1 + n)
    in the saturation model (TTSPM, arXiv 2505.20522). The vote ends without an answer when that is at most `chance`;
    0.02 is 48 branches. The rule says nothing once there is a vote, so use another rule beside it. Failed branches do
    not count. Price: a hard question that one branch in a hundred answers is lost.
    """

    fidelity = Fidelity("idea", paper="2505.20522")

    chance: float = Field(default=0.02, gt=0.0, lt=0.5, description="Highest chance of an answer at which to give up.")

    def enough(self, poll: Poll) -> str | None:
        """Return the chance, once it is low enough and there is no vote."""
        if poll.votes:
            return None
        silent = poll.fold(self, _Silent).count
        chance = beta_mean(0, silent)
        return f"none of {silent} branches has an answer, chance {chance:.3g}" if chance <= self.chance else None


class _Silent:
    """The branches that are done without an answer."""

    count = 0

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        self.count += branch.done and key is None
