"""Merge `tool-majority`: among turns that call tools, choose the action that most branches want next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.declarations import Fidelity, Free
from plait.core.errors import PluginError
from plait.core.interfaces import Merge, Verdict
from plait.core.ops import Function
from plait.core.task import Task
from plait.core.tools.turns import Dialect
from plait.core.view import Branch

from .._actions import Actions, By
from .._ballots import Ballot, Class, find_winner, group_by_answer, list_absent, no_vote_verdict, read_roll, top_two

__all__ = ["ToolMajority"]


_KEPT = 16
"""Maximum number of tasks whose action task is cached; it caches the answers read from the branches."""


class ToolMajority(Merge):
    """Self-consistency (Wang et al., arXiv 2203.11171) over actions: each turn that is done has one vote.

    The branches are samples of one turn of a conversation; none of their calls has been made yet. A turn votes for its
    calls. A turn without calls votes for the answer that the request's task reads in it. A turn with an unreadable call
    does not vote. Ties go to the action with the greater sum of its voters' mean log-probabilities if every tied voter
    has one, else to the action with the earliest voter. The rules that stop a vote count these votes.

    Arguments are compared in canonical form if `tools` has the tool's schema: defaults are filled in, and `"3"` for a
    number is 3.

    Differs from votes over sets of calls: a repeated call counts twice (`multiset`). Default: `hierarchical`.
    """

    fidelity = Fidelity(
        "variant",
        "votes over calls, all of a turn; of one call by name or `hierarchical` as its_hub",
        oracles=("its-hub-tool-votes",),
        paper="2203.11171",
    )

    votes: ClassVar[bool] = True

    criterion: By = Field(
        default="hierarchical",
        description="Criterion of equality. `name`: the names of the tools, in order. `arguments`: "
        "these and their arguments. `hierarchical`: first a vote over the names, then over the arguments among those "
        "who won. `multiset`: names and arguments, in any order.",
    )
    exclude: Annotated[tuple[str, ...], Free()] = Field(
        default=(),
        description="Arguments to ignore in the comparison, of all tools (`comment`) or of one tool "
        "(`search.reason`); the call keeps the first voter's.",
    )
    tools: tuple[Function, ...] = Field(default=(), description="The tools, for their schemas.")
    dialect: Dialect = Field(
        default="native",
        description="Output format of the model: tags of native calls, or lines `Action: …`.",
    )
    gives: Literal["action", "text"] = Field(
        default="action",
        description='What the join\'s value is: `{"calls": [{"name", "arguments"}, …]}` or the answer; or the text '
        "of the turn.",
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> ToolMajority:
        if self.exclude and self.criterion == "name":
            raise ValueError("`exclude` leaves arguments out, and a vote by name looks at none: leave one of them out")
        fields = {tool.name: tool.parameters.get("properties") for tool in self.tools}
        known = {name for properties in fields.values() if isinstance(properties, dict) for name in properties}
        for name in self.exclude if self.tools else ():
            tool, dot, argument = name.rpartition(".")
            of_tool = fields.get(tool)
            if not (name in known or (dot and isinstance(of_tool, dict) and argument in of_tool)):
                raise ValueError(f"no tool has an argument {name!r:.80}, which `exclude` names")
        return self

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the counts, the margin and the branches without a vote. Raises `PluginError`
        for branches whose values are not turns of a model."""
        values = ((branch.name, branch.result.value) for branch in branches if branch.result)
        # A vote over the results of tools would read every value as "no call".
        odd = next((name for name, value in values if not isinstance(value, str)), None)
        if odd is not None:
            raise PluginError(
                f"tool-majority votes over turns of a model, and the value of {odd} is no text: join turns"
            )
        actions = self.reads(task)
        roll = read_roll(branches, actions)
        if not roll.ballots:
            return no_vote_verdict(roll)
        ballots, prefix = roll.ballots, ""
        if self.criterion == "hierarchical":
            named = _group_by_tools(ballots, actions)
            best, how = find_winner(named)
            second = top_two(group.votes for group in named if group is not best)[0]
            prefix = f"names {best.votes} of {roll.votes} votes, margin {best.votes - second}{how}; "
            ballots = best.ballots
        counted = group_by_answer(ballots)
        best, how = find_winner(counted)
        votes = sum(ballot.count for ballot in ballots)
        second = top_two(group.votes for group in counted if group is not best)[0]
        action = _format_action(best.first.answer)
        why = f"{prefix}{action}: {best.votes} of {votes} votes, margin {best.votes - second}{how}"
        value = self._value(best.first)
        return Verdict(
            value=value,
            why="; ".join([why, *list_absent(roll)]),
            winner=best.first.branch.name,
            extracted=value is not None,
        )

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether the `outstanding` branches cannot change the action: the lead exceeds their votes. If turns of
        one class may differ (`name`, `exclude`), all branches before the first voter must have ended."""
        if outstanding <= 0:
            return True
        actions = self.reads(task)
        roll = read_roll(branches, actions)
        out = outstanding + roll.pending
        ballots = roll.ballots
        if self.criterion == "hierarchical":
            named = _group_by_tools(ballots, actions)
            top, second = top_two(group.votes for group in named)
            if top - second <= out:
                return False
            ballots = max(named, key=lambda group: group.votes).ballots
        counted = group_by_answer(ballots)
        top, second = top_two(group.votes for group in counted)
        if top - second <= out:
            return False
        if self.criterion != "name" and not self.exclude:
            return True
        # The first voter decides the arguments, and an earlier branch could still become the first voter.
        first = max(counted, key=lambda group: group.votes).first
        return all(branch.state.ended for branch in branches[: first.place])

    def reads(self, task: Task) -> Actions:
        """Return the task that reads the branches' actions."""
        known = next((reading for reading in self._read if reading.inner is task), None)
        if known is None:
            known = Actions(
                text=task.text,
                inner=task,
                criterion=self.criterion,
                exclude=self.exclude,
                functions=self.tools,
                dialect=self.dialect,
            )
            self._read.append(known)
        return known

    @cached_property
    def _read(self) -> deque[Actions]:
        return deque(maxlen=_KEPT)

    def _value(self, ballot: Ballot) -> JsonValue:
        if self.gives == "text":
            return ballot.result.text
        answer = ballot.answer
        return answer["answer"] if isinstance(answer, dict) and "answer" in answer else answer


def _group_by_tools(ballots: Sequence[Ballot], actions: Actions) -> list[Class]:
    """Return the ballots in classes that call the same tools."""
    groups: dict[str, Class] = {}
    for ballot in ballots:
        named = groups.setdefault(actions.names(ballot.answer), Class(ballot))
        named.ballots.append(ballot)
        named.votes += ballot.count
    return list(groups.values())


def _format_action(answer: JsonValue) -> str:
    match answer:
        case {"calls": list() as calls}:
            return ", ".join(str(call["name"]) for call in calls if isinstance(call, dict))
        case _:
            return "answer"
