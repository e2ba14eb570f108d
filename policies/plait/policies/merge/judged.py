"""Merge `judged`: a model marks each different answer, and the best mark wins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Free
from plait.core.interfaces import Verdict
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import ask_model
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch

from .._ballots import OpenVote, group_by_answer, list_absent, no_vote_verdict, read_claim, read_roll
from ._model_merge import ModelMerge, unique_name

__all__ = ["Judged"]

_MARK = """\
{question}

An answer to this:
{answer}

How likely is this answer right? Give a mark from 0 (surely wrong) to {best} (surely right).
Mark:"""
_NUMBER = re.compile(r"(?<![\w.])\d++(?:\.\d++)?(?![\w.]*\d)")


class CandidateMark(Frozen):
    """A candidate."""

    branch: str
    """The first branch that gave this answer."""
    call: str
    """The step that marks this answer."""
    votes: int
    """Number of branches that gave this answer."""


class Judged(OpenVote, ModelMerge):
    """Best-of-n with a model as the scorer: it gives every different answer a mark from 0 to `best`.

    Equal answers are marked once; a single answer is not marked. The highest mark wins; ties go to the answer with more
    votes, then to the answer whose first voter comes earliest. The mark is the last number in the judge's reply (`8`,
    `8/10`, `8 out of 10`). An answer whose call fails, or gives no number from 0 to `best`, loses to any answer with a
    mark. The join expands into the calls.
    """

    best: Annotated[int, Free()] = Field(default=10, ge=1, description="The highest mark.")
    judge: Annotated[CallConfig, Uses("question", "answer", "best")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0),
        description="Marks an answer. Its template has `{question}`, `{answer}`, and `{best}`, the highest mark.",
    )
    marks: Annotated[tuple[CandidateMark, ...], Free()] = Field(
        default=(), description="What has been marked; set by the merge itself."
    )
    left_out: Annotated[tuple[str, ...], Free()] = Field(
        default=(), description="Who did not vote, and why; set by the merge itself."
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the answer with the best mark, or the calls as more plan; `why` has the marks."""
        if self.marks:
            return self._best({branch.name: branch for branch in branches}, task)
        roll = read_roll(branches, task)
        counted = sorted(group_by_answer(roll.ballots), key=lambda group: (-group.votes, group.first.place))
        if not counted:
            return no_vote_verdict(roll)
        why = f"{len(counted)} different answers of {roll.votes} votes"
        if len(counted) == 1:
            only = counted[0].first
            nothing = "; ".join([f"nothing to mark: {why}", *list_absent(roll)])
            return Verdict(value=only.answer, why=nothing, winner=only.branch.name, extracted=True)
        names = [group.first.branch.name for group in counted]
        calls: list[Step] = []
        entries: list[CandidateMark] = []
        for i, group in enumerate(counted, 1):
            text = self.excerpt(group.first.branch.line)
            pieces = self.judge.text(_MARK, question=task.render(), answer=text, best=str(self.best))
            label = f"mark {group.first.branch.name}"
            calls.append(ask_model(task, unique_name(f"mark-{i}", names), pieces, self.judge, label=label))
            entries.append(CandidateMark(branch=group.first.branch.name, call=calls[-1].name, votes=group.votes))
        update = {"marks": tuple(entries), "left_out": tuple(list_absent(roll))}
        options: dict[str, JsonValue] = self.model_copy(update=update).model_dump(mode="json")
        op = Join(merge=Plugin(name="judged", options=options), on_failure="any-end")
        end = Step(
            name=unique_name("marks", names), op=op, needs=(*(call.name for call in calls), *names), label="marks"
        )
        return Verdict(value=None, why=why, patch=Plan(steps=(*calls, end), output=end.name))

    def _best(self, by_name: dict[str, Branch], task: Task) -> Verdict:
        marks = [self._mark(by_name.get(entry.call)) for entry in self.marks]
        at = max(range(len(marks)), key=lambda i: (-1.0 if marks[i] is None else marks[i], self.marks[i].votes, -i))
        best = self.marks[at]
        claim = read_claim(by_name[best.branch], task)
        shown = ", ".join(f"{entry.branch} {_format_mark(mark)}" for entry, mark in zip(self.marks, marks, strict=True))
        why = f"marked {_format_mark(marks[at])} of {self.best} ({shown}); {best.votes} votes"
        others = [mark for i, mark in enumerate(marks) if i != at and mark is not None]
        mark = marks[at]
        # Without a second mark there is no margin.
        if mark is not None and others:
            why += f", margin {_format_mark(mark - max(others))}"
        why = "; ".join([why, *self.left_out])
        return Verdict(value=claim[0] if claim else None, why=why, winner=best.branch, extracted=True)

    def _mark(self, call: Branch | None) -> float | None:
        text = call.text if call is not None and call.done else ""
        # The last number of "8 of 10" is not the mark.
        numbers = _NUMBER.findall(re.sub(rf"(?<!\s)\s*+(?:/|out of|of)\s*+{self.best}\b", "", text))
        mark = float(numbers[-1]) if numbers else -1.0
        return mark if 0.0 <= mark <= self.best else None


def _format_mark(mark: float | None) -> str:
    return "none" if mark is None else f"{mark:g}"
