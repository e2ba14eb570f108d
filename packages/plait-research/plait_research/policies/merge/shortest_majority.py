"""Merge `shortest-majority`: votes, divided by the length of the answers' traces."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plait.core.declarations import Fidelity
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch
from plait.policies._ballots import (
    Class,
    OpenVote,
    build_verdict,
    drop_ballots,
    format_names,
    group_by_answer,
    no_vote_verdict,
    read_roll,
)

__all__ = ["ShortestMajority"]


class ShortestMajority(OpenVote, Merge):
    """Shortest Majority Vote (Zeng et al., arXiv 2502.12215): the answer with the largest c / log(l).

    c is the answer's number of votes and l their mean length in tokens, at least e, so that very short answers do not
    divide by zero. A branch that was cut off by its token limit has no known length and does not vote. The weight of
    length is small (4 votes of 16,000 tokens still beat 3 of 2,000): in the main it breaks ties. Equal scores go to the
    answer with more votes, then to the one whose first voter comes earliest.
    """

    fidelity = Fidelity("exact", paper="2502.12215")
    lost_in = ("erring_votes", "votes")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has votes, mean lengths, the margin and the excluded branches."""
        roll, cut = drop_ballots(read_roll(branches, task), lambda ballot: ballot.result.finish != "length")
        left_out = [f"cut off: {format_names(cut)}"] if cut else []
        counted = group_by_answer(roll.ballots)
        if not counted:
            return no_vote_verdict(roll, left_out)
        for group in counted:
            group.weight = group.votes / math.log(max(_length(group), math.e))
        best = min(counted, key=lambda group: (-group.weight, -group.votes, group.first.place))
        second = max((group.weight for group in counted if group is not best), default=0.0)
        why = f"{best.votes} of {roll.votes} votes, mean length {_length(best):.4g} tokens"
        why += f", score {best.weight:.4g}, margin {best.weight - second:.4g}"
        return build_verdict(best, why, roll, left_out)


def _length(group: Class) -> float:
    """Return the mean length of an answer's traces in tokens, without the branches merged into them."""
    return math.fsum(ballot.result.length for ballot in group.ballots) / len(group.ballots)
