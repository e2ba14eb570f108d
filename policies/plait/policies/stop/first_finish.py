"""Stop rule `first-finish`: end the vote when one answer has enough votes."""

from __future__ import annotations

from pydantic import Field

from plait.core.declarations import Fidelity

from .._stopping import Poll, StopRule

__all__ = ["FirstFinish"]


class FirstFinish(StopRule):
    """First-Finish (ParaThinker, arXiv 2509.04475), as a quorum: the vote ends when an answer has `votes` votes.

    With one vote, the paper's rule, the first branch with an answer decides, so the vote is as good as one branch.
    Short answers win this race; the policy `waves:n=…` beside it makes the race smaller. See `adaptive-consistency`
    for a quorum that grows with the votes for other answers.
    """

    fidelity = Fidelity("exact", paper="2509.04475")

    votes: int = Field(default=1, ge=1, description="Votes for one answer at which to stop.")

    def enough(self, poll: Poll) -> str | None:
        """Return the count, once it is reached."""
        first, _ = poll.lead()
        return f"{first} of {poll.votes} votes are for one answer" if first >= self.votes else None
