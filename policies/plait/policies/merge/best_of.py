"""Merge `best-of`: the first answer that the task's verifier finds right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import JsonValue

from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import SettlingTally, list_absent, read_claim, read_roll, read_truth

__all__ = ["BestOf"]


class BestOf(Merge):
    """Best-of-n with a verifier.

    The value is the answer (as the task extracted it) of the first branch in the join's order whose answer is verified.
    Failing that, the most frequent of the answers that the verifier cannot judge (the earliest among equals), and `why`
    reports it as not verified. Answers found wrong are never returned: with nothing else the value is `null`.
    """

    votes: ClassVar[bool] = True
    verifies: ClassVar[bool] = True

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has how many answers were right, wrong and not judged."""
        unsure: dict[str, tuple[Branch, JsonValue, int]] = {}
        first: tuple[Branch, JsonValue] | None = None
        right = wrong = silent = judged = 0
        roll = read_roll(branches, task)
        stands_for = {ballot.branch.name: ballot.count for ballot in roll.ballots}
        for branch, answer in _read_answers(branches, task):
            truth = read_truth(branch, task)
            if answer is None:
                silent += 1
            elif truth is True:
                right += 1
                first = first or (branch, answer)
            elif truth is False:
                wrong += 1
            else:
                key = task.key(answer)
                who, what, votes = unsure.get(key, (branch, answer, 0))
                unsure[key] = who, what, votes + stands_for[branch.name]
                judged += 1
        total = sum(votes for _, _, votes in unsure.values())
        done = right + wrong + silent + judged
        counts = f"of {done} done, {right} right, {wrong} wrong, {judged} not judged, {silent} without an answer"
        counts = "; ".join([counts, *list_absent(roll)])
        if first is not None:
            return Verdict(value=first[1], why=f"verified; {counts}", winner=first[0].name, extracted=True)
        if unsure:
            branch, answer, votes = max(unsure.values(), key=lambda entry: entry[2])
            why = f"not verified, {votes} of {total} votes; {counts}"
            return Verdict(value=answer, why=why, winner=branch.name, extracted=True)
        return Verdict(value=None, why=f"no answer that could be right; {counts}")

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether some branch's answer is verified: any further one would be no more right."""
        if outstanding <= 0:
            return True
        return any(read_truth(branch, task) is True for branch in branches)

    def tally(self, task: Task) -> SettlingTally:
        """Return a tally that looks for the first verified answer."""
        return SettlingTally(lambda branch: read_truth(branch, task) is True)


def _read_answers(branches: Sequence[Branch], task: Task) -> list[tuple[Branch, JsonValue]]:
    """Return each branch that is done with the answer it claims, or `None`."""
    claims = [(branch, read_claim(branch, task)) for branch in branches if branch.done and branch.result is not None]
    return [(branch, None if claim is None else claim[0]) for branch, claim in claims]
