"""What a plan may say: steps and plans.

Everything here is written down somewhere (journal, wire, a planner model's JSON), so everything is a frozen pydantic
model that forbids unknown fields. The docstring under a field is also its JSON-schema description. `validate` checks a
whole plan before it runs; the machine checks patches.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    model_validator,
)

from .budget import Budget
from .errors import PlanError
from .messages import did_you_mean
from .ops import Call, Join, Op, Ref, Think
from .shown import marked, table
from .tools.more import MORE_TOOLS
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
                for message in messages:
                    if isinstance(message.content, tuple):
                        yield from (part.step for part in message.content if part.type == "value")
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
        # A set is enough for plans that are right; only a wrong one pays for the search of the name.
        if len({step.name for step in self.steps}) != len(self.steps):
            seen: set[str] = set()
            twice = next(s.name for s in self.steps if s.name in seen or seen.add(s.name))
            raise ValueError(f"two steps are named {twice!r}")
        return self

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the steps, what each reads and does, indented below the longest way to it."""
        depth: dict[str, int] = {}
        steps = {step.name: step for step in self.steps}
        for name in in_order({step.name: [need for need in needs(step) if need in steps] for step in self.steps}):
            depth[name] = 1 + max((depth[need] for need in needs(steps[name]) if need in steps), default=-1)
        rows = [
            (
                f"<span style='padding-left:{1.2 * depth[step.name]:.1f}em'>{marked(step.name)}</span>",
                step.op.kind + ", expands" * step.expands,
                marked(", ".join(needs(step))),
                marked(step.label),
                "the answer" * (step.name == self.output),
            )
            for step in sorted(self.steps, key=lambda step: depth[step.name])
        ]
        return table(("step", "kind", "reads", "", ""), rows)


def needs(step: Step) -> tuple[str, ...]:
    """Return the names of the steps that must be done before this one, each once, `after` last."""
    if isinstance(step.op, Call) and not step.op.args and len(step.needs) < 2:
        return step.needs
    names = dict.fromkeys(step.references())
    if isinstance(step.op, Think) and step.op.after is not None:
        names.setdefault(step.op.after)
    return tuple(names)


def validate(plan: Plan, tools: Collection[str] | None = None) -> None:
    """Raise `PlanError` unless the plan can be run: its output and references are steps of it, `after` names a step
    that has a context, there is no cycle, every step leads to the output, and every tool is one of `tools`, if given.

    Time is linear in steps and needs.
    """
    if not plan.steps:
        raise PlanError("the plan has no steps")
    steps = {step.name: step for step in plan.steps}
    if plan.output is None:
        raise PlanError("the plan names no output: say which step's value is the answer")
    if plan.output not in steps:
        raise PlanError(f"the output {plan.output!r} is not a step of the plan{did_you_mean(plan.output, steps)}")
    known = None if tools is None else frozenset(tools)
    edges: dict[str, tuple[str, ...]] = {}
    ordered = True
    for step in plan.steps:
        named = needs(step)
        ordered = ordered and all(map(edges.__contains__, named))
        edges[step.name] = named
        for name in named:
            if name not in steps:
                hint = did_you_mean(name, steps) or f"; there are {some(steps)}"
                raise PlanError(f"step {step.name!r} refers to {name!r}, which is no step of the plan{hint}")
            if name == step.name:
                raise PlanError(f"step {name!r} refers to itself")
        _check_op(step, steps, known)
    # Before the search for stray steps, which a cycle would make pointless.
    if not ordered:  # a step before all that it needs is in no cycle
        in_order(edges)
    stray = _not_leading_to(plan.output, edges)
    if stray:
        more = f" (nor do {len(stray) - 1} more)" if len(stray) > 1 else ""
        raise PlanError(
            f"step {stray[0]!r} does not lead to the output {plan.output!r}{more}: nobody would read it; "
            "remove it, or name it in the `needs` of a step that does"
        )


def in_order(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the steps with needs before those that need them. `edges`: each step's needs. Raises `PlanError` for a
    cycle."""
    try:
        return list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        around: list[str] = error.args[1]  # each is needed by the next one; the sentence goes the other way
        raise PlanError("the plan has a cycle: " + " needs ".join(reversed(around))) from None


def _check_op(step: Step, steps: dict[str, Step], tools: frozenset[str] | None) -> None:
    match step.op:
        case Think(after=str() as after):
            target = steps[after]
            if target.op.kind == "call" or (target.op.kind == "join" and not target.expands):
                raise PlanError(
                    f"step {step.name!r} is `after` {after!r}, a {target.op.kind}: only a think step has a context"
                )
        # A planner may ask for more tools than it was told of; that tool is always there.
        case Call(tool=tool) if tools is not None and tool not in tools and tool != MORE_TOOLS:
            hint = did_you_mean(tool, tools) or (f"; there are {some(sorted(tools))}" if tools else "; none was given")
            raise PlanError(f"step {step.name!r} calls the tool {tool!r}, which is not there{hint}")
        case _:
            pass


def _not_leading_to(output: str, edges: dict[str, tuple[str, ...]]) -> list[str]:
    read = {output}
    todo = [output]
    while todo:
        for dep in edges[todo.pop()]:
            if dep not in read:
                read.add(dep)
                todo.append(dep)
    return [name for name in edges if name not in read]


def some(names: Iterable[str]) -> str:
    """Name a few of many steps or tools."""
    listed = list(names)
    return ", ".join(listed) if len(listed) <= 6 else f"{', '.join(listed[:5])} and {len(listed) - 5} more"
