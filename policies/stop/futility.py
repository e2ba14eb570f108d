"""Stop rule `futility`: give up, if none of many branches had an answer. Says nothing about votes that were cast."""

from __future__ import annotations

from pydantic import Field

from plait.core.sampling_theory import beta_mean

from .._stopping import Poll, StopRule

__all__ = ["Futility"]


class Futility(StopRule):
    """Stopping for futility, as in sequential trials: so many branches have ended without an answer that the next one
    is hardly going to have one.

    The marginal gain of the saturation model (TTSPM, arXiv 2505.20522) while nothing has succeeded: with the posterior
    Beta(1, 1 + n) after n branches without an answer the next has one with probability 1 / (n + 2). At that most
    `epsilon` the vote ends, without an answer; 0.02 is 48 branches. Once there is a vote the rule is silent, and so it
    needs another beside it. Branches that failed for other reasons say nothing about the question and do not count.

    It saves most where answers are rare, and costs the answers that would have come late: hard questions that a full
    vote answers by one branch in a hundred are lost.
    """

    epsilon: float = Field(default=0.02, gt=0.0, lt=0.5)
    """Most chance of an answer at which to give up."""

    def enough(self, poll: Poll) -> str | None:
        """Return the chance, once it is low enough and there is no vote."""
        if poll.votes:
            return None
        silent = len(poll.roll.silent)
        chance = beta_mean(0, silent)
        return f"none of {silent} branches has an answer, chance {chance:.3g}" if chance <= self.epsilon else None
