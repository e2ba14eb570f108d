"""Merge `equivalent`: a majority vote over classes of answers that a tool, an embedding or a model finds equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from plait.core.declarations import ToolName
from plait.core.interfaces import Verdict
from plait.core.ops import Join, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.task import Task
from plait.core.values import as_text
from plait.core.view import Branch
from plait.core.vocabulary import Count, FreeText

from .._ballots import (
    Ballot,
    Class,
    OpenVote,
    Roll,
    build_verdict,
    group_by_answer,
    no_vote_verdict,
    read_roll,
    top_two,
)
from ._grouping import Grouping, Groups
from ._model_merge import unique_name

__all__ = ["Equivalent"]

_COMPARE = """\
{question}

Two answers to this:

A:
{a}

B:
{b}

Do A and B mean the same answer? Say only yes or no.
"""
_TOOLS = {"tool": "math_equal", "embedding": "embed"}


class Equivalent(OpenVote, Grouping):
    """A majority vote over classes of equivalent answers. Use it if the equivalence is too slow or too risky to compute
    inside the machine.

    Each different answer (by the task's key) is judged once; a single answer is not judged. Judges (`ask`):

    - `tool`: a tool, such as a computer algebra system, that takes `answers`, a list of texts, and returns for each
      answer the index of the first equal one (`math_equal`: math-verify in a process that can be killed).
    - `embedding`: a tool that takes `texts` and returns a vector for each. In the order of votes, an answer joins the
      most similar class before it at a cosine of `threshold` (0.9).
    - `model`: a model compares pairs of answers (yes or no), starting with the most frequent answer.

    If the tool or a model's call fails or returns another form, the task's keys decide (in that pair), and `why`
    reports it. Ties go to the answer whose first voter comes earliest in the join's order; the value is the answer of
    the class's first voter.
    """

    ask: Literal["tool", "embedding", "model"] = Field(default="tool", description="What judges.")
    tool: Annotated[str | None, ToolName()] = Field(
        default=None,
        min_length=1,
        description="Name of the tool: `math_equal` (of `ask=tool`) or `embed` (of `ask=embedding`) if left out.",
    )
    max_prompt_items: Count = Field(
        default=16,
        ge=2,
        description="Maximum number of items in one prompt, the nearest or best first: answers, those with most "
        "votes. The others keep to themselves.",
    )
    called: FreeText | None = Field(default=None, description="Step that judged; set by the merge itself.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict, or the calls as more plan."""
        by_name = {branch.name: branch for branch in branches}
        # After the first round the judge's calls are branches too; they have no vote.
        calls = {self.called, *(self.grouped.calls if self.grouped is not None else ())}
        roll = read_roll([branch for branch in branches if branch.name not in calls], task)
        counted = group_by_answer(roll.ballots)
        if not counted:
            return no_vote_verdict(roll)
        why = f"{len(counted)} different answers of {roll.votes} votes"
        if len(counted) == 1:
            return build_verdict(counted[0], why, roll)
        ranked = sorted(counted, key=lambda group: (-group.votes, group.first.place))
        if self.ask == "model":
            return self._group_by_model(ranked, roll, by_name, why, task)
        if self.called is None:
            # Embeddings need the answers in the order of votes; a tool returns places in the order of its input.
            return self._call(ranked if self.ask == "embedding" else counted, branches, why)
        asked = by_name.get(self.called)
        value = asked.result.value if asked is not None and asked.result is not None else None
        if self.ask == "embedding":
            groups = self.by_embedding([group.first.branch.name for group in ranked], value)
            return self._count_classes(roll, counted, _heads_of_groups(groups, counted) if groups is not None else None)
        return self._count_classes(roll, counted, _read_heads(value, len(counted)))

    @property
    def _tool(self) -> str:
        return self.tool or _TOOLS[self.ask]

    def _call(self, counted: Sequence[Class], branches: Sequence[Branch], why: str) -> Verdict:
        names = [branch.name for branch in branches]
        name = unique_name("equivalence", names)
        answers: list[JsonValue] = [as_text(group.first.answer) for group in counted]
        args: dict[str, JsonValue] = {"texts" if self.ask == "embedding" else "answers": answers}
        call = Step(name=name, op=ToolCall(tool=self._tool, args=args), label=self._tool)
        return Verdict(value=None, why=why, patch=self._plan_round((call,), names, {"called": name}))

    def _group_by_model(
        self, ranked: Sequence[Class], roll: Roll, by_name: dict[str, Branch], why: str, task: Task
    ) -> Verdict:
        texts = {group.first.branch.name: as_text(group.first.answer) for group in ranked}
        if self.grouped is None:
            alone = tuple((name,) for name in tuple(texts)[self.max_prompt_items :])
            groups = Groups(whole=alone, open=tuple(texts)[: self.max_prompt_items]).settle_open()
        else:
            groups = self.read_round(self.grouped, by_name)
        if groups.open:
            taken = dict.fromkeys(by_name, "") | texts
            steps = self.comparisons(groups, taken, _COMPARE, task)
            asking = groups.model_copy(update={"calls": tuple(step.name for step in steps)})
            voters = [name for name in by_name if self.grouped is None or name not in self.grouped.calls]
            return Verdict(value=None, why=why, patch=self._plan_round(steps, voters, {"grouped": asking}))
        note = [f"{groups.silent} comparisons came to nothing and count as no"] if groups.silent else []
        if len(ranked) > self.max_prompt_items:
            note.append(f"{len(ranked) - self.max_prompt_items} of the answers were not compared")
        counted = group_by_answer(roll.ballots)
        return self._count_classes(roll, counted, _heads_of_groups(groups, counted), note)

    def _plan_round(self, steps: Sequence[Step], voters: Sequence[str], update: dict[str, object]) -> Plan:
        """Return the calls and the vote that reads them."""
        options: dict[str, JsonValue] = self.model_copy(update=update).model_dump(mode="json")
        op = Join(merge=Plugin(name="equivalent", options=options), on_failure="any-end")
        needs = (*(step.name for step in steps), *voters)
        end = Step(name=unique_name("equivalent-vote", needs), op=op, needs=needs, label="vote")
        return Plan(steps=(*steps, end), output=end.name)

    def _count_classes(
        self, roll: Roll, given: Sequence[Class], heads: Sequence[int] | None, note: Sequence[str] = ()
    ) -> Verdict:
        """Return the verdict over classes; `heads[i]` is the place of the answer that answer i equals."""
        if heads is None:
            what = "classes" if self.ask == "tool" else "vectors"
            note = [*note, f"{self._tool} gave no {what}, so the task's own equality counts"]
            heads = range(len(given))
        head_of = {group.first.key: given[head].first.key for group, head in zip(given, heads, strict=True)}
        merged = [Ballot(b.place, b.branch, b.answer, head_of[b.key], b.count) for b in roll.ballots]
        counted = group_by_answer(merged)
        top, second = top_two(group.votes for group in counted)
        best = next(group for group in counted if group.votes == top)
        tie = ", a tie settled by order" if top == second else ""
        why = f"{top} of {roll.votes} votes, margin {top - second}{tie}; {len(given)} answers in {len(counted)} classes"
        return build_verdict(best, why, roll, note)


def _heads_of_groups(groups: Groups, counted: Sequence[Class]) -> list[int]:
    """Return for each answer the place of its group's first answer."""
    places = {group.first.branch.name: i for i, group in enumerate(counted)}
    heads = [0] * len(counted)
    for members in groups.whole:
        for name in members:
            heads[places[name]] = places[members[0]]
    return heads


def _read_heads(value: JsonValue, n: int) -> list[int] | None:
    """Return the classes if they are valid: each answer has an earlier answer, or itself, as the head of its class."""
    if not isinstance(value, list) or len(value) != n:
        return None
    heads = [index for index in value if isinstance(index, int) and not isinstance(index, bool)]
    # Each answer must point at the first answer of its class, which points at itself. This excludes circles.
    right = len(heads) == n and all(0 <= head <= i and heads[head] == head for i, head in enumerate(heads))
    return heads if right else None
