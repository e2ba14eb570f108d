"""Stop rule `adaptive-consistency`: end the vote when the first answer is very likely the most frequent one."""

from __future__ import annotations

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.sampling_theory import majority_probability

from .._stopping import Poll, StopRule

__all__ = ["AdaptiveConsistency"]


class AdaptiveConsistency(StopRule):
    """Adaptive-Consistency (Aggarwal et al., arXiv 2305.11860) with its Beta criterion, in closed form.

    With a and b votes for the first and second answer the probability that the first is more frequent than the second
    is 2^-(a+b+1) * sum of C(a+b+1, k) over k = 0..a; the vote ends when that reaches `confidence`, and running branches
    are aborted. Branches count in the order in which they end, which favours short ones. The verdict can differ from
    that of the full vote: tokens are saved for that risk.
    """

    fidelity = Fidelity("exact", oracles=("adaptive-consistency",), paper="2305.11860")

    confidence: float = Field(
        default=0.95,
        gt=0.5,
        lt=1.0,
        description="Probability at which something counts as sure, and the vote stops; 3 votes against none reach "
        "0.9375, 4 reach 0.969.",
    )
    min_votes: int = Field(default=1, ge=1, description="Votes below which not to stop.")

    def enough(self, poll: Poll) -> str | None:
        """Return the counts and the probability, once that is high enough."""
        first, second = poll.lead()
        if first == second or poll.votes < self.min_votes:
            return None
        sure = majority_probability(first, second)
        return f"{first} to {second} votes, probability {sure:.4g}" if sure >= self.confidence else None
