"""Merge `majority`: the answer that most branches give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity, Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import VoteTally, build_verdict, find_winner, group_by_answer, no_vote_verdict, read_roll

__all__ = ["Majority"]


class Majority(Merge):
    """Self-consistency (Wang et al., arXiv 2203.11171): one vote for each branch that is done and has an answer.

    A branch that was given up in favour of another (as redundant) votes with that one. Ties go to the answer whose
    voters' mean log-probabilities sum to more, if every voter of the tied answers has one, and else to the answer whose
    first voter comes earliest in the join's order. The value is the answer as the task extracted it from its first
    voter, or `null` when no branch has an answer.
    """

    plans_more = False
    fidelity = Fidelity("exact", paper="2203.11171")

    votes: ClassVar[bool] = True

    weights: Annotated[dict[str, Annotated[int, Field(ge=1)]], Free()] = Field(
        default={},
        description="Number of votes of a branch, by its name, if it represents more than itself: clusters of a "
        "planner's.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the counts, the margin and who did not vote."""
        roll = read_roll(branches, task, self.weights)
        counted = group_by_answer(roll.ballots)
        if not counted:
            return no_vote_verdict(roll)
        best, how = find_winner(counted)
        second = max((group.votes for group in counted if group is not best), default=0)
        return build_verdict(best, f"{best.votes} of {roll.votes} votes, margin {best.votes - second}{how}", roll)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether the lead exceeds the `outstanding` votes: then every outcome has the same winner (by
        `Task.key`), whatever the tie rule says. Branches given up in favour of one that is still out are outstanding
        too."""
        tally = self.tally(task)
        for branch in branches:
            if branch.state.ended:
                tally.ended(branch)
        return tally.decided(outstanding)

    def tally(self, task: Task) -> VoteTally:
        """Return an empty tally of the votes."""
        return VoteTally(task, self.weights)
