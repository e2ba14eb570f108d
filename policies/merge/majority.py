"""Merge `majority`: the answer that most branches give.

What an answer is, and when two are the same, the task says. This file counts; it does not know which is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from orchestrator.core.base import Merge, Task, Verdict
from orchestrator.core.view import Branch

__all__ = ["Majority"]


@dataclass(slots=True)
class _Class:
    """Branches that give one answer."""

    first: int
    winner: Branch
    answer: JsonValue
    logprobs: list[float | None] = field(default_factory=list[float | None])

    @property
    def votes(self) -> int:
        return len(self.logprobs)

    @property
    def logprob(self) -> float | None:
        known = [value for value in self.logprobs if value is not None]
        return math.fsum(known) if len(known) == self.votes else None


class Majority(Merge):
    """Self-consistency (Wang et al., arXiv 2203.11171): one vote for each branch that is done and has an answer.

    Ties go to the answer whose voters' mean log-probabilities sum to more, if every voter of the tied answers has one,
    and else to the answer whose first voter comes earliest in the join's order. The value is the answer as the task
    extracted it from its first voter, or `null` when no branch has an answer.
    """

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the counts, the margin and who did not vote."""
        classes, silent = _tally(branches, task)
        missing = [f"{branch.name} {branch.state}" for branch in branches if not branch.done]
        left_out = [f"no answer in {_names(silent)}"] if silent else []
        left_out += [f"not counted: {_names(missing)}"] if missing else []
        if not classes:
            return Verdict(value=None, why="; ".join([f"no votes in {len(branches)} branches", *left_out]))
        best = max(classes, key=lambda each: each.votes)
        tied = [each for each in classes if each.votes == best.votes]
        how = ""
        if len(tied) > 1:
            scores = [each.logprob for each in tied]
            known = [score for score in scores if score is not None]
            by_logprob = len(known) == len(tied)
            if by_logprob:
                best = min(tied, key=lambda each: (-(each.logprob or 0.0), each.first))
            else:
                best = min(tied, key=lambda each: each.first)
            how = f", a tie of {len(tied)} settled by " + ("log-probability" if by_logprob else "order")
        voters = sum(each.votes for each in classes)
        second = max((each.votes for each in classes if each is not best), default=0)
        why = f"{best.votes} of {voters} votes, margin {best.votes - second}{how}"
        return Verdict(value=best.answer, why="; ".join([why, *left_out]), winner=best.winner.name)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether the lead exceeds the `outstanding` votes: then every outcome has the same winner (by
        `Task.key`), whatever the tie rule says."""
        if outstanding <= 0:
            return True
        if sum(branch.done for branch in branches) <= outstanding:
            return False  # not even with one voice; saves reading all the texts
        votes = sorted((each.votes for each in _tally(branches, task)[0]), reverse=True)
        lead = votes[0] - (votes[1] if len(votes) > 1 else 0) if votes else 0
        return lead > outstanding


def _tally(branches: Sequence[Branch], task: Task) -> tuple[list[_Class], list[str]]:
    """Return the answers in the order of their first voters, and the names of finished branches without an answer."""
    classes: dict[str, _Class] = {}
    silent: list[str] = []
    for i, branch in enumerate(branches):
        if not branch.done or branch.result is None:
            continue
        answer = None if branch.result.value is None else task.extract(branch.result.text)
        if answer is None:
            silent.append(branch.name)
            continue
        found = classes.setdefault(task.key(answer), _Class(i, branch, answer))
        found.logprobs.append(branch.result.logprob)
    return list(classes.values()), silent


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
