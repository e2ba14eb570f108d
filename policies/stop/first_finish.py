"""Stop rule `first-finish`: enough votes, if an answer has so many. Counts; knows no probabilities."""

from __future__ import annotations

from pydantic import Field

from .._stopping import Poll, StopRule

__all__ = ["FirstFinish"]


class FirstFinish(StopRule):
    """First-Finish (ParaThinker, arXiv 2509.04475), as a quorum: the vote ends when an answer has `votes` votes.

    With one vote, the paper's rule, whoever is first decides: that is right as often as a branch that has an answer is.
    A branch that ends without one does not count. Branches that run side by side are a race that short answers win;
    `waves:width=…` beside it makes the race smaller. See `adaptive-consistency` for a quorum that grows with the votes
    for other answers.
    """

    votes: int = Field(default=1, ge=1)
    """Votes for one answer at which to stop."""

    def enough(self, poll: Poll) -> str | None:
        """Return the count, once it is reached."""
        first, _ = poll.lead()
        return f"{first} of {poll.votes} votes are for one answer" if first >= self.votes else None
