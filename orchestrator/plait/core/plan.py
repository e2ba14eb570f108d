"""Steps and plans.

All types here are serialized (journal, wire, a planner model's JSON), so each is a frozen pydantic model that forbids
unknown fields. The docstring under a field is also the field's JSON-schema description. `validate` checks a whole plan
before it runs; the machine checks patches.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from .budget import Budget
from .errors import PlanError
from .messages import did_you_mean
from .notebook_html import escape_text
from .ops import Join, ModelCall, Op, Ref, ToolCall
from .tools.schemas import MORE_TOOLS
from .values import Frozen, StepName, complaints, json_references

if TYPE_CHECKING:
    import networkx as nx

_NUMBERS = re.compile(r"\d+")


def template(step: str) -> str:
    """Return a step's template name: its name without run, scope and numbers.

    >>> template("r1:fork/p12-3"), template("sample-7")
    ('p-', 'sample-')
    """
    return _NUMBERS.sub("", step.rpartition(":")[2].rpartition("/")[2])


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


TURN = "turn"
"""Role of an agent's turn. The turn's text is part of the answer, unless the turn calls a tool."""


class Step(Frozen):
    """One node of a plan."""

    name: StepName
    """Name, unique in the step's plan and in all patches to the same expanding step."""
    op: Op
    needs: tuple[StepName, ...] = ()
    """Steps that must be done first; for a join, its branches in order. References and `after` are needs by
    themselves."""
    expands: bool = False
    """When it has its value, ask the planner for more plan, whose output then replaces that value."""
    budget: Budget | None = None
    priority: int = 0
    """Smaller runs first, before any policy's rank."""
    side_effects: bool = False
    """Whether the call has side effects: it is never retried."""
    label: str = ""
    """A few words for people."""
    role: str = Field(default="", exclude_if=lambda role: not role)
    """The step's role for its planner's reader, such as `plan` or `round`. The reader decides by the role; the name is
    for people."""
    state: Annotated[JsonValue, BeforeValidator(_none_if_empty)] = Field(
        default=None, exclude_if=lambda state: state is None
    )
    """State for the planner's reader of this step, as JSON; nothing else reads it."""

    @model_validator(mode="after")
    def _join_has_branches(self) -> Step:
        if self.op.kind == "join" and not self.needs and self.op.on_failure != "any-end":
            raise ValueError(f"join {self.name!r} has no branches: name them in `needs`")
        return self

    @property
    def feeds_reader(self) -> bool:
        """Whether the planner's reader gets the streamed text."""
        return self.expands and self.op.kind == "think" and bool(self.op.stream)

    def token_cost(self) -> float:
        """Return the step's weight in a path: the token limit of a model call, 1 for a tool call, 0 for a join."""
        match self.op:
            case ModelCall(sampling=sampling):
                return float(sampling.max_tokens)
            case ToolCall():
                return 1.0
            case Join():
                return 0.0

    def references(self) -> Iterator[str]:
        """Names of the steps whose values this step reads, in order, without `after`. Names may repeat."""
        yield from self.needs
        match self.op:
            case ModelCall(prompt=parts, messages=messages):
                yield from (part.step for part in parts if isinstance(part, Ref))
                for message in messages:
                    if isinstance(message.content, tuple):
                        yield from (part.step for part in message.content if part.type == "value")
            case ToolCall(args=args):
                if args:
                    yield from json_references(args)
            case Join():
                pass


class Plan(Frozen):
    """Steps and the name of the one whose value is the plan's. A patch is a plan that replaces one step's
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
    drops: tuple[StepName, ...] = Field(default=(), exclude_if=lambda drops: not drops)
    """Of a patch: steps around it that are cancelled unless they have begun."""

    @model_validator(mode="after")
    def _names_unique(self) -> Plan:
        # A set suffices for a valid plan; only an invalid one pays for the search of the name.
        if len({step.name for step in self.steps}) != len(self.steps):
            seen: set[str] = set()
            twice = next(s.name for s in self.steps if s.name in seen or seen.add(s.name))
            raise ValueError(f"two steps are named {twice!r}")
        return self

    def _repr_html_(self) -> str:
        """Return the notebook's picture: the plan as a graph, with a column for each wave of steps."""
        import networkx as nx

        waves = [sorted(names) for names in nx.topological_generations(acyclic_graph(self))]
        place = {name: (190 * x + 4, 40 * y + 4) for x, names in enumerate(waves) for y, name in enumerate(names)}
        lines = [(*place[need], *place[step.name]) for step in self.steps for need in needs(step)]
        parts = [f"<path d='M{x + 150},{y + 15} L{to_x},{to_y + 15}' stroke='#999'/>" for x, y, to_x, to_y in lines]
        for step in self.steps:
            x, y = place[step.name]
            notes = escape_text(" · ".join(filter(None, (step.op.kind, "expands" * step.expands, step.label))))
            parts.append(
                f"<g stroke='currentColor'><title>{notes}</title><rect x='{x}' y='{y}' width='150' height='30' "
                f"fill='#8882' stroke-width='{1 + 2 * (step.name == self.output)}'/><text x='{x + 8}' y='{y + 19}' "
                f"font-size='12' fill='currentColor' stroke='none'>{escape_text(step.name[:22])}</text></g>"
            )
        return f"<svg width='{190 * len(waves)}' height='{40 * max(map(len, waves)) + 8}'>{''.join(parts)}</svg>"

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return the plan as a graph with a node for each step, by name, and an edge from each step to each of its
        dependents. All attributes are plain JSON.

        - Of a node: the fields of `Step` but `name` and `needs` (`op`, `label`, `expands`, `budget`, …), and two that
          follow from `op`: `kind` (`think`, `call` or `join`) and `tokens`, which the step counts in a critical path
          (`Step.token_cost`).
        - Of an edge: `kinds`, some of `needs`, `ref` (the op reads the value) and `after` (it continues the context),
          and `positions`, the places in the step's `needs`.
        - Of the graph: `output`, `budget`, and `group` if there is one.

        A patch's needs outside the plan are omitted.
        """
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph(**self.model_dump(mode="json", exclude={"steps"}))
        for step in self.steps:
            graph.add_node(
                step.name, **_operation_fields(step), **step.model_dump(mode="json", exclude={"name", "needs"})
            )
        for step in self.steps:
            positions: dict[str, list[int]] = {}
            for position, need in enumerate(step.needs):
                positions.setdefault(need, []).append(position)
            for need, kinds in _edge_kinds(step).items():
                if need in graph:
                    graph.add_edge(need, step.name, kinds=kinds, positions=positions.get(need, []))
        return graph

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph[str]) -> Plan:
        """Return the plan for a graph of `to_networkx`. For a valid plan, `from_networkx(plan.to_networkx()) == plan`.
        Steps are in the order of the nodes.

        An edge without `kinds` and `positions` is one of the step's `needs`, after those with positions. `kind` and
        `tokens` of a node may be left out, further attributes of an edge are ignored.

        Raises `PlanError` for a graph that is undirected, has no `output`, a node without `op` or with an unknown
        attribute, an edge that contradicts the `op`, or any mistake that `validate` finds, such as a cycle.
        """
        if not graph.is_directed() or graph.is_multigraph():
            raise PlanError(f"a plan needs an nx.DiGraph, got {type(graph).__name__}: convert it with nx.DiGraph()")
        if graph.graph.get("output") is None:
            raise PlanError('the graph has no output: set graph.graph["output"] to the step whose value is the answer')
        try:
            plan = cls.model_validate({**graph.graph, "steps": tuple(_step_of_node(graph, name) for name in graph)})
        except ValidationError as error:
            raise PlanError(complaints(cls, error)) from None
        validate(plan)
        _check_edges(plan, graph)
        return plan


def needs(step: Step) -> tuple[str, ...]:
    """Return the names of the steps that must end before this step, without repetition, `after` last."""
    op = step.op
    if len(step.needs) < 2 and (
        not op.args if isinstance(op, ToolCall) else op.kind == "think" and op.is_self_contained
    ):
        return step.needs
    names = dict.fromkeys(step.references())
    if isinstance(step.op, ModelCall) and step.op.after is not None:
        names.setdefault(step.op.after)
    return tuple(names)


def validate(plan: Plan, tools: Collection[str] | None = None) -> None:
    """Raise `PlanError` unless the plan can run: the output and all references are steps of the plan, `after` names a
    step with a context, there is no cycle, every step leads to the output, and every tool is in `tools`, if given.

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
                hint = did_you_mean(name, steps) or f"; there are {format_some(steps)}"
                raise PlanError(f"step {step.name!r} refers to {name!r}, which is not a step of the plan{hint}")
            if name == step.name:
                raise PlanError(f"step {name!r} refers to itself")
        _check_op(step, steps, known)
    # First find cycles: a cycle would make the search for stray steps pointless.
    if not ordered:  # a step listed before its needs is in no cycle
        topological_order(edges)
    stray = _unused_steps(plan.output, edges)
    if stray:
        more = f" (nor do {len(stray) - 1} more)" if len(stray) > 1 else ""
        raise PlanError(
            f"step {stray[0]!r} does not lead to the output {plan.output!r}{more}: its value would be unused; "
            "remove it, or name it in the `needs` of a step that does"
        )


def topological_order(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the steps in topological order, needs first. `edges`: each step's needs. Raises `PlanError` for a cycle.
    From the standard library, not networkx, because every run checks its plan: the import would cost 0.1 s."""
    # All steps first: steps of one wave keep the order of `edges`.
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(edges, ()))
    for name, before in edges.items():
        sorter.add(name, *before)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        around: list[str] = error.args[1]  # each is needed by the next; the message has the reverse order
        raise PlanError("the plan has a cycle: " + " needs ".join(reversed(around))) from None


def acyclic_graph(plan: Plan) -> nx.DiGraph[str]:
    """Return the plan's graph with an edge from each need to its dependents, without needs outside the plan. Raises
    `PlanError` for a cycle."""
    import networkx as nx

    names = {step.name for step in plan.steps}
    edges = {step.name: [need for need in needs(step) if need in names] for step in plan.steps}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(topological_order(edges))  # raises an error that names the cycle, which networkx does not
    graph.add_edges_from((need, name) for name, needed in edges.items() for need in needed)
    return graph


def _step_of_node(graph: nx.DiGraph[str], name: str) -> Step:
    """Return a node's step. Its needs are the edges with positions, then the edges of unknown kind."""
    fields = dict(graph.nodes[name])
    derived = {key: fields.pop(key) for key in ("kind", "tokens") if key in fields}
    needed: list[tuple[float, str]] = []
    try:
        for need, edge in graph.pred[name].items():
            default = () if "kinds" in edge else (math.inf,)
            needed += [(float(position), need) for position in edge.get("positions", default)]
        if edges := fields.keys() & {"name", "needs"}:
            raise PlanError(f"`{min(edges)}` is not a node attribute: the node is the name, edges are the needs")
        named = [need for _, need in sorted(needed, key=lambda place: place[0])]
        step = Step.model_validate({**fields, "name": name, "needs": named})
        for key, value in _operation_fields(step).items():
            if derived.get(key, value) != value:
                raise PlanError(f"`{key}` is {derived[key]!r}, but the `op` gives {value!r}: change the `op`")
    except ValidationError as error:
        raise PlanError(f"node {name!r}: {complaints(Step, error)}") from None
    except PlanError as error:
        raise PlanError(f"node {name!r}: {error}") from None
    except (TypeError, ValueError):
        raise PlanError(f"node {name!r}: an edge into it has `positions` that are not a list of integers") from None
    return step


def _check_edges(plan: Plan, graph: nx.DiGraph[str]) -> None:
    """Raise `PlanError` if a graph's edges contradict the ops of its plan."""
    for step in plan.steps:
        meant = _edge_kinds(step)
        for need in dict.fromkeys((*meant, *graph.pred[step.name])):
            if not graph.has_edge(need, step.name):
                raise PlanError(
                    f"step {step.name!r} reads {need!r} in its `op`, but there is no edge {need} -> {step.name}: add "
                    "the edge, or change the `op`"
                )
            kinds = meant.get(need, ())
            given = graph.edges[need, step.name].get("kinds", kinds)
            if given not in (kinds, list(kinds)):
                raise PlanError(
                    f"the edge {need} -> {step.name} has the kinds {given}, but `op` and `needs` of {step.name!r} give "
                    f"{list(kinds)}: change them, or remove `kinds`"
                )


def _operation_fields(step: Step) -> dict[str, JsonValue]:
    """Return the fields of a node that describe its `op`."""
    return {"kind": step.op.kind, "tokens": int(step.token_cost())}


def _edge_kinds(step: Step) -> dict[str, tuple[str, ...]]:
    """Return the steps that a step needs, each with the reasons: `needs`, `ref` (the op reads the value), `after`."""
    after = step.op.after if isinstance(step.op, ModelCall) else None
    why = {"needs": set(step.needs), "ref": set([*step.references()][len(step.needs) :]), "after": {after}}
    return {need: tuple(kind for kind, named in why.items() if need in named) for need in needs(step)}


def _check_op(step: Step, steps: dict[str, Step], tools: frozenset[str] | None) -> None:
    match step.op:
        case ModelCall(after=str() as after):
            target = steps[after]
            if target.op.kind == "call" or (target.op.kind == "join" and not target.expands):
                raise PlanError(
                    f"step {step.name!r} is `after` {after!r}, a {target.op.kind}: only a think step has a context"
                )
        # `more_tools`, with which a planner finds further tools, always exists.
        case ToolCall(tool=tool) if tools is not None and tool not in tools and tool != MORE_TOOLS:
            hint = did_you_mean(tool, tools) or (
                f"; there are {format_some(sorted(tools))}" if tools else "; none was given"
            )
            raise PlanError(f"step {step.name!r} calls the tool {tool!r}, which is not there{hint}")
        case _:
            pass


def _unused_steps(output: str, edges: dict[str, tuple[str, ...]]) -> list[str]:
    read = {output}
    todo = [output]
    while todo:
        for dep in edges[todo.pop()]:
            if dep not in read:
                read.add(dep)
                todo.append(dep)
    return [name for name in edges if name not in read]


def format_some(names: Iterable[str]) -> str:
    """Name a few of many steps or tools."""
    listed = list(names)
    return ", ".join(listed) if len(listed) <= 6 else f"{', '.join(listed[:5])} and {len(listed) - 5} more"
