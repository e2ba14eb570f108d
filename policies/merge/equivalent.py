"""Merge `equivalent`: a majority over classes of answers that a tool finds to be the same. It only counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, JsonValue

from orchestrator.core.base import Merge, Task, Verdict
from orchestrator.core.ir import Call, Join, Plan, Plugin, Step, as_text
from orchestrator.core.view import Branch

from .._votes import Ballot, Roll, classes, lead, nobody, read, verdict
from ._asking import fresh

__all__ = ["Equivalent"]


class Equivalent(Merge):
    """A majority vote over classes of equivalent answers, for an equivalence that is too slow or too risky to ask for
    inside the machine: a computer algebra system (`math_equal`, math-verify in a process that can be killed), an
    embedding, a model.

    The join expands into one call of `tool` with `answers`, a list of texts, each different one (by the task's key)
    once. It returns a list as long: for each answer the index of the first that is the same. If it fails, or returns
    anything else, the task's keys alone decide, and `why` says so. Equal counts go to the answer whose first voter
    comes earliest in the join's order. One answer alone is not asked about.
    """

    votes: ClassVar[bool] = True

    tool: str = Field(default="math_equal", min_length=1)
    """Name of the tool."""
    call: str | None = None
    """The step whose value are the classes; set by the merge itself."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict, or the call as more plan."""
        voters = [branch for branch in branches if branch.name != self.call]
        roll = read(voters, task)
        counted = classes(roll.ballots)
        if not counted:
            return nobody(roll)
        if self.call is not None:
            asked = next((branch for branch in branches if branch.name == self.call), None)
            return self._counted(roll, asked)
        why = f"{len(counted)} different answers of {roll.votes} votes"
        if len(counted) == 1:
            return verdict(counted[0], why, roll)
        names = [branch.name for branch in branches]
        name = fresh("equivalence", names)
        answers: list[JsonValue] = [as_text(each.first.answer) for each in counted]
        call = Step(name=name, op=Call(tool=self.tool, args={"answers": answers}), label=self.tool)
        options: dict[str, JsonValue] = {"tool": self.tool, "call": name}
        op = Join(merge=Plugin(name="equivalent", options=options), tolerate="any-end")
        end = Step(name=fresh("equivalent-vote", names), op=op, needs=(name, *names), label="vote")
        return Verdict(value=None, why=why, patch=Plan(steps=(call, end), output=end.name))

    def _counted(self, roll: Roll, asked: Branch | None) -> Verdict:
        first = [each.first.key for each in classes(roll.ballots)]
        heads = _heads(asked.result.value if asked is not None and asked.result is not None else None, len(first))
        note: list[str] = []
        if heads is None:
            note = [f"{self.tool} gave no classes, so the task's own equality counts"]
            heads = list(range(len(first)))
        head_of = {key: first[head] for key, head in zip(first, heads, strict=True)}
        merged = [Ballot(b.place, b.branch, b.answer, head_of[b.key], b.count) for b in roll.ballots]
        counted = classes(merged)
        top, second = lead(each.votes for each in counted)
        best = next(each for each in counted if each.votes == top)
        tie = ", a tie settled by order" if top == second else ""
        why = f"{top} of {roll.votes} votes, margin {top - second}{tie}; {len(first)} answers in {len(counted)} classes"
        return verdict(best, why, roll, note)


def _heads(value: JsonValue, n: int) -> list[int] | None:
    """Return classes if they are well formed: for each answer an earlier one, or itself, that heads its class."""
    if not isinstance(value, list) or len(value) != n:
        return None
    heads = [each for each in value if isinstance(each, int) and not isinstance(each, bool)]
    right = len(heads) == n and all(0 <= head <= i and heads[head] == head for i, head in enumerate(heads))
    return heads if right else None
