"""Merge `synthesis-or-vote`: the synthesis, or the most frequent answer of its sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.access import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

__all__ = ["SynthesisOrVote"]


class SynthesisOrVote(Merge):
    """The first branch is the synthesis, the other branches are its sources. The value is the text of the first that
    there is:

    1. the synthesis, if it has an answer, unless that is verified wrong while a source is verified right;
    2. the first source that is verified right;
    3. the first source with the answer that most sources give;
    4. a source verified wrong, or the synthesis without an answer.
    """

    note: Annotated[str, Free()] = Field(default="", description="Start of `why`: a planner's words for people.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` says which of the two it is."""
        lead, sources = branches[0], branches[1:]
        answer = _answer(lead, task)
        truth = None if answer is None else task.verify(answer)
        if answer is not None and truth is not False:
            return self._verdict(lead, f"a synthesis of {len(sources)} drafts" if len(sources) > 1 else "a synthesis")
        votes: dict[str, tuple[int, int, Branch]] = {}
        for branch in sources:
            claim = _answer(branch, task)
            if claim is None:
                continue
            right = {True: 1, None: 0, False: -1}[task.verify(claim)]
            _, count, first = votes.get(task.key(claim), (right, 0, branch))
            votes[task.key(claim)] = (right, count + 1, first)
        what = "found wrong" if truth is False else _state(lead)
        best = max(votes.values(), key=lambda vote: vote[:2], default=None)
        if best is None or (truth is False and best[0] < 1):
            if lead.result is None:
                return Verdict(value=None, why=self._why(f"the synthesis {what}, and no draft has an answer"))
            return self._verdict(lead, f"the synthesis {what}" if truth is False else "the synthesis has no answer")
        total = sum(count for _, count, _ in votes.values())
        how = "verified" if best[0] == 1 else f"{best[1]} of {total} votes"
        return self._verdict(best[2], f"a draft ({how}): the synthesis {what}")

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether the synthesis is the answer for any result of the sources."""
        if outstanding <= 0:
            return True
        answer = _answer(branches[0], task)
        return answer is not None and task.verify(answer) is not False

    def _verdict(self, branch: Branch, why: str) -> Verdict:
        assert branch.result is not None
        return Verdict(value=branch.result.value, why=self._why(why), winner=branch.name)

    def _why(self, reason: str) -> str:
        return f"{self.note}; {reason}" if self.note else reason


def _answer(branch: Branch, task: Task) -> JsonValue:
    if not branch.done or branch.result is None or branch.result.value is None:
        return None
    return task.extract(branch.result.line)


def _state(branch: Branch) -> str:
    if branch.failure is not None:
        return f"failed: {branch.failure.kind}: {branch.failure.message}"
    return "has no answer" if branch.result is not None else "was stopped"
