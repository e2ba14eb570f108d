"""What a plan may say: steps and plans.

Everything here is written down somewhere (journal, wire, a planner model's JSON), so everything is a frozen pydantic
model that forbids unknown fields. The docstring under a field is also its JSON-schema description. Only the form is
checked here; `plait.core.graph` and the machine check references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    model_validator,
)

from .budget import Budget
from .ops import Call, Join, Op, Ref, Think
from .values import Frozen, StepName, json_references

_NUMBERS = re.compile(r"\d+")


def template(step: str) -> str:
    """Return what steps of one kind have in common: the name without its run, its scope and its numbers.

    >>> template("r1:fork/p12-3"), template("sample-7")
    ('p-', 'sample-')
    """
    return _NUMBERS.sub("", step.rpartition(":")[2].rpartition("/")[2])


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


class Step(Frozen):
    """One node of a plan."""

    name: StepName
    """Unique among the steps of its plan (and of the other patches to the same expanding step)."""
    op: Op
    needs: tuple[StepName, ...] = ()
    """Steps that must be done first; for a join, its branches in order. References and `after` are needs by
    themselves."""
    expands: bool = False
    """When it has its value, ask the planner for more plan, whose output then stands in for that value."""
    budget: Budget | None = None
    priority: int = 0
    """Smaller runs first, before any policy's rank."""
    side_effects: bool = False
    """The call changes the world: it is never tried a second time."""
    label: str = ""
    """A few words for people."""
    state: Annotated[JsonValue, BeforeValidator(_none_if_empty)] = Field(
        default=None, exclude_if=lambda state: state is None
    )
    """What the planner's reader of this step needs to know again, as JSON; nobody else reads it."""

    @model_validator(mode="after")
    def _join_has_branches(self) -> Step:
        if self.op.kind == "join" and not self.needs and self.op.tolerate != "any-end":
            raise ValueError(f"join {self.name!r} has no branches: name them in `needs`")
        return self

    def token_cost(self) -> float:
        """Return how much it counts in the length of a path: tokens a think step may generate, 1 for a call, 0 for a
        join."""
        match self.op:
            case Think(sampling=sampling):
                return float(sampling.max_tokens)
            case Call():
                return 1.0
            case Join():
                return 0.0

    def references(self) -> Iterator[str]:
        """Names of the steps whose values this one reads, in order, without `after`; may repeat."""
        yield from self.needs
        match self.op:
            case Think(prompt=parts, messages=messages):
                yield from (part.step for part in parts if isinstance(part, Ref))
                for each in messages:
                    if isinstance(each.content, tuple):
                        yield from (part.step for part in each.content if part.type == "value")
            case Call(args=args):
                if args:
                    yield from json_references(args)
            case Join():
                pass


class Plan(Frozen):
    """Steps and the name of the one whose value is the plan's. A patch is a plan that stands in for one step's
    value."""

    steps: tuple[Step, ...]
    output: StepName | None = None
    """The step whose value is the answer. Only a patch that is not the last of its step may leave it out; it may also
    name a step of an earlier patch."""
    budget: Budget | None = None
    """Limits on all steps of this plan together (a branch group)."""
    group: str = Field(default="", exclude_if=lambda group: not group)
    """Of a patch: name of the branch group that its steps belong to, together with those of other patches to the same
    step that name it. The first of them says the budget. `a/b` lies inside the group `a`."""

    @model_validator(mode="after")
    def _names_unique(self) -> Plan:
        if len({step.name for step in self.steps}) != len(self.steps):
            seen: set[str] = set()
            twice = next(s.name for s in self.steps if s.name in seen or seen.add(s.name))
            raise ValueError(f"two steps are named {twice!r}")
        return self
