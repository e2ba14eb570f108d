"""The shape of a plan: its waves, its critical path, its picture as text.

Pure functions of one plan before anything runs: what its steps expand into is not known here. The only file that
imports networkx, when first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .messages import counted
from .ops import Call, Join, Think
from .plan import Plan, Step, in_order, needs, some

if TYPE_CHECKING:
    import networkx as nx

Weight = Callable[[Step], float]


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps each of which needs the one before it, and the sum of their weights."""

    names: tuple[str, ...]
    length: float


def waves(plan: Plan) -> list[list[str]]:
    """Return the steps by depth, each wave in plan order. The steps of a wave need only steps of earlier waves. Raises
    `PlanError` for a cycle."""
    import networkx as nx

    edges = _edges(plan)
    in_order(edges)
    place = {step.name: number for number, step in enumerate(plan.steps)}
    return [sorted(wave, key=place.__getitem__) for wave in nx.topological_generations(_digraph(edges))]


def critical_path(plan: Plan, weight: Weight = Step.token_cost) -> Chain:
    """Return the heaviest chain of steps that ends in the output (in any step, if the plan names none)."""
    edges, steps = _edges(plan), {step.name: step for step in plan.steps}
    length: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for name in in_order(edges):
        best = max(edges[name], key=length.__getitem__, default=None)
        before[name] = best
        length[name] = weight(steps[name]) + (0.0 if best is None else length[best])
    end = plan.output if plan.output in steps else max(length, key=length.__getitem__, default=None)
    if end is None:
        return Chain((), 0.0)
    names: list[str] = []
    at: str | None = end
    while at is not None:
        names.append(at)
        at = before[at]
    return Chain(tuple(reversed(names)), length[end])


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
            arrow = "==>" if dep == _after(step) else "-->"
            lines.append(f"  {ids.get(dep, 'outside')} {arrow} {ids[step.name]}")
    dashed = [ids[step.name] for step in plan.steps if step.expands]
    if dashed:
        lines += ["  classDef expands stroke-dasharray: 5 5", f"  class {','.join(dashed)} expands"]
    if plan.output in ids:
        lines.append(f"  style {ids[plan.output]} stroke-width:3px")
    return "\n".join(lines) + "\n"


def dot(plan: Plan) -> str:
    """Return the plan in Graphviz's language, with the same marks as `mermaid`."""
    shapes = {"think": "ellipse", "call": "box", "join": "hexagon"}
    lines = ["digraph plan {", "  rankdir=TB;"]
    for step in plan.steps:
        style = "dashed" if step.expands else "solid"
        pen = ", peripheries=2" if step.name == plan.output else ""
        label = "\\n".join(_quoted(line) for line in _caption(step))
        lines.append(f'  "{step.name}" [label="{label}", shape={shapes[step.op.kind]}, style={style}{pen}];')
    for step in plan.steps:
        for dep in needs(step):
            bold = " [style=bold]" if dep == _after(step) else ""
            lines.append(f'  "{dep}" -> "{step.name}"{bold};')
    return "\n".join([*lines, "}"]) + "\n"


def text(plan: Plan) -> str:
    """Return the plan as a table in plain ASCII, a line a step by wave; runs of like steps become one line."""
    steps = {step.name: step for step in plan.steps}
    rows = [("wave", "step", "does", "needs")]
    for depth, layer in enumerate(waves(plan)):
        for alike in _runs([steps[name] for name in layer]):
            first, last = alike[0], alike[-1]
            name = first.name if first is last else f"{first.name} .. {last.name} ({len(alike)})"
            mark = " *" if plan.output in {first.name, last.name} else ""
            rows.append((str(depth), name + mark, _does(first), some(needs(first))))
    columns = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(cell.ljust(size) for cell, size in zip(row, columns, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    end = "* the output" if plan.output is not None else "which a flow makes first; what it makes next depends on them"
    lines.append(f"{counted(len(steps), 'step')}, {end}")
    return "\n".join(lines).encode("ascii", "replace").decode() + "\n"


# -- checks ------------------------------------------------------------------------------------------------------------


def _edges(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return each step's needs, those outside the plan (a patch may have some) left out."""
    names = {step.name for step in plan.steps}
    return {step.name: tuple(name for name in needs(step) if name in names) for step in plan.steps}


def _digraph(edges: dict[str, tuple[str, ...]]) -> nx.DiGraph[str]:
    """Return the plan's graph, an edge from each need to each step that has it."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(edges)
    graph.add_edges_from((need, name) for name, needed in edges.items() for need in needed)
    return graph


# -- words -------------------------------------------------------------------------------------------------------------


def _after(step: Step) -> str | None:
    return step.op.after if isinstance(step.op, Think) else None


def _does(step: Step) -> str:
    """Say in a few words what a step does."""
    match step.op:
        case Think(after=after, sampling=sampling):
            what = f"think <= {sampling.max_tokens} tokens" + (f" after {after}" if after else "")
        case Call(tool=tool):
            what = f"call {tool}"
        case Join(merge=merge, tolerate=tolerate, quorum=quorum, deadline=deadline, early=early):
            what = f"join {merge.name}, {f'quorum {quorum}' if quorum else tolerate}"
            what += (f", {deadline:g} s" if deadline else "") + (", early" if early else "")
    return what + (", expands" if step.expands else "") + (", side effects" if step.side_effects else "")


def _caption(step: Step) -> list[str]:
    return [step.name, *([step.label] if step.label else []), _does(step)]


def _runs(steps: Sequence[Step]) -> Iterable[list[Step]]:
    """Yield runs of neighbours that do the same with the same needs."""
    run: list[Step] = []
    for step in steps:
        if run and (_does(step), needs(step)) != (_does(run[0]), needs(run[0])):
            yield list(run)
            run.clear()
        run.append(step)
    if run:
        yield list(run)


def _html(line: str) -> str:
    for raw, safe in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", " ")):
        line = line.replace(raw, safe)
    return line


def _quoted(line: str) -> str:
    return line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
