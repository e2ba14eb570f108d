"""A plan's graph: waves, critical path, and text renderings.

Pure functions, mostly on one plan before it runs: the plans of expanding steps are not known here. networkx is imported
when a function first needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.messages import pluralise
from ...core.ops import Join, ModelCall, ToolCall
from ...core.plan import Plan, Step, acyclic_graph, format_some, needs
from ...core.record import StepRecord

if TYPE_CHECKING:
    import networkx as nx

Weight = Callable[[Step], float]


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of steps in which each step needs its predecessor, and the sum of the weights."""

    names: tuple[str, ...]
    length: float


def waves(plan: Plan) -> list[list[str]]:
    """Return the steps by depth, each wave in plan order. The steps of a wave need only steps of earlier waves. Raises
    `PlanError` for a cycle."""
    import networkx as nx

    place = {step.name: number for number, step in enumerate(plan.steps)}
    return [sorted(wave, key=place.__getitem__) for wave in nx.topological_generations(acyclic_graph(plan))]


def critical_path(plan: Plan, weight: Weight = Step.token_cost) -> Chain:
    """Return the heaviest chain of steps that ends in the output (in any step, if the plan names none).

    `weight` returns the weight of a step, 0 or more. Raises `PlanError` for a cycle.
    """
    graph, weights = acyclic_graph(plan), {step.name: weight(step) for step in plan.steps}
    graph.add_weighted_edges_from([(need, name, weights[need]) for need, name in graph.edges])
    last = [plan.output] if plan.output in weights else list(graph)
    names = _heaviest_path(graph, {name: weights[name] for name in last})
    return Chain(names, sum(map(weights.__getitem__, names), 0.0))


def longest_path(edges: Iterable[tuple[str, str, float]], end: str) -> Chain:
    """Return the heaviest path of weighted edges, without a cycle, that ends in `end`."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_weighted_edges_from(edges)
    names = _heaviest_path(graph, {end: 0.0})
    return Chain(names, sum((graph.edges[edge]["weight"] for edge in itertools.pairwise(names)), 0.0))


def _heaviest_path(graph: nx.DiGraph[str], last: Mapping[str, float]) -> tuple[str, ...]:
    """Return the heaviest path that ends in one of `last`, given with what it weighs itself; leave no other node."""
    import networkx as nx

    end = "\0"  # an extra node after the last one; no node has this name
    # Weight of the last node plus one: a path without it must be shorter, even if it weighs 0.
    graph.add_weighted_edges_from((name, end, weight + 1) for name, weight in last.items())
    leads: set[str] = nx.ancestors(graph, end) if last else set()  # pyright: ignore[reportUnknownMemberType]
    graph.remove_nodes_from(set(graph) - leads - {end})
    return tuple(nx.dag_longest_path(graph))[:-1]


def context_lines(steps: Iterable[StepRecord]) -> Callable[[str], list[str]]:
    """Return a function from a step's id to the ids of the steps whose contexts the step continues, directly or not.
    The steps of an expansion come before the step that expanded into them."""
    import networkx as nx

    after: dict[str, str | None] = {}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for step in steps:
        after[step.step] = step.after
        graph.add_edges_from((step.step, before) for before in (step.source, step.after) if before is not None)

    def line(step: str) -> list[str]:
        before = after.get(step)
        return [] if before is None else list(nx.dfs_preorder_nodes(graph, before))

    return line


# -- pictures ----------------------------------------------------------------------------------------------------------


def mermaid(plan: Plan) -> str:
    """Return the plan as a Mermaid flowchart: rounded think steps, boxed calls, hexagonal joins. A thick arrow
    continues a context, a dashed border marks a step that expands, a thick one the output."""
    ids = {step.name: f"s{i}" for i, step in enumerate(plan.steps)}
    shapes = {"think": ("(", ")"), "call": ("[[", "]]"), "join": ("{{", "}}")}
    lines = ["flowchart TD"]
    for step in plan.steps:
        left, right = shapes[step.op.kind]
        text = "<br/>".join(_html(line) for line in _caption(step))
        lines.append(f'  {ids[step.name]}{left}"{text}"{right}')
    for step in plan.steps:
        for dep in needs(step):
            arrow = "==>" if dep == _continued_step(step) else "-->"
            lines.append(f"  {ids.get(dep, 'outside')} {arrow} {ids[step.name]}")
    dashed = [ids[step.name] for step in plan.steps if step.expands]
    if dashed:
        lines += ["  classDef expands stroke-dasharray: 5 5", f"  class {','.join(dashed)} expands"]
    if plan.output in ids:
        lines.append(f"  style {ids[plan.output]} stroke-width:3px")
    return "\n".join(lines) + "\n"


def text(plan: Plan) -> str:
    """Return the plan as an ASCII table with one line per step, by wave; similar adjacent steps share a line."""
    steps = {step.name: step for step in plan.steps}
    rows = [("wave", "step", "does", "needs")]
    for depth, layer in enumerate(waves(plan)):
        for alike in _group_alike([steps[name] for name in layer]):
            first, last = alike[0], alike[-1]
            name = first.name if first is last else f"{first.name} .. {last.name} ({len(alike)})"
            mark = " *" if plan.output in {first.name, last.name} else ""
            rows.append((str(depth), name + mark, _describe_step(first), format_some(needs(first))))
    columns = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(cell.ljust(size) for cell, size in zip(row, columns, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    end = "* the output" if plan.output is not None else "which a flow makes first; what it makes next depends on them"
    lines.append(f"{pluralise(len(steps), 'step')}, {end}")
    return "\n".join(lines).encode("ascii", "replace").decode() + "\n"


def summary(plan: Plan) -> str:
    """Return the number of waves, the width and the critical path of a plan, in one line."""
    chain, layers = critical_path(plan), waves(plan)
    wide = max(map(len, layers), default=0)
    return (
        f"{pluralise(len(layers), 'wave')}, width {wide}, critical path {' > '.join(chain.names)} "
        f"(at most {chain.length:g} tokens)"
    )


# -- words -------------------------------------------------------------------------------------------------------------


def _continued_step(step: Step) -> str | None:
    return step.op.after if isinstance(step.op, ModelCall) else None


def _describe_step(step: Step) -> str:
    """Summarise a step's operation in a few words."""
    match step.op:
        case ModelCall(after=after, sampling=sampling):
            what = f"think <= {sampling.max_tokens} tokens" + (f" after {after}" if after else "")
        case ToolCall(tool=tool):
            what = f"call {tool}"
        case Join(merge=merge, on_failure=on_failure, quorum=quorum, deadline=deadline, early=early):
            what = f"join {merge.name}, {f'quorum {quorum}' if quorum else on_failure}"
            what += (f", {deadline:g} s" if deadline else "") + (", early" if early else "")
    return what + (", expands" if step.expands else "") + (", side effects" if step.side_effects else "")


def _caption(step: Step) -> list[str]:
    return [step.name, *([step.label] if step.label else []), _describe_step(step)]


def _group_alike(steps: Sequence[Step]) -> Iterable[list[Step]]:
    """Yield runs of neighbours that do the same with the same needs."""
    run: list[Step] = []
    for step in steps:
        if run and (_describe_step(step), needs(step)) != (_describe_step(run[0]), needs(run[0])):
            yield list(run)
            run.clear()
        run.append(step)
    if run:
        yield list(run)


def _html(line: str) -> str:
    for raw, safe in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", " ")):
        line = line.replace(raw, safe)
    return line
