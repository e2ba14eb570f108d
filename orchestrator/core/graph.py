"""The shape of a plan: whether it can be run, its waves, its critical path, its picture as text.

Pure functions of one plan before anything runs: what its steps expand into is not known here. The only file that
imports networkx, when first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import PlanError
from .messages import counted, did_you_mean
from .ops import Call, Join, Think
from .plan import Plan, Step
from .tools.more import MORE_TOOLS

if TYPE_CHECKING:
    import networkx as nx

Weight = Callable[[Step], float]


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps each of which needs the one before it, and the sum of their weights."""

    names: tuple[str, ...]
    length: float


def needs(step: Step) -> tuple[str, ...]:
    """Return the names of the steps that must be done before this one, each once, `after` last."""
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
    for step in plan.steps:
        edges[step.name] = named = needs(step)
        for name in named:
            if name not in steps:
                hint = did_you_mean(name, steps) or f"; there are {_some(steps)}"
                raise PlanError(f"step {step.name!r} refers to {name!r}, which is no step of the plan{hint}")
            if name == step.name:
                raise PlanError(f"step {name!r} refers to itself")
        _check_op(step, steps, known)
    if len(_order(edges)) < len(steps):
        raise PlanError("the plan has a cycle: " + " needs ".join(_cycle(edges)))
    stray = _not_leading_to(plan.output, edges)
    if stray:
        more = f" (nor do {len(stray) - 1} more)" if len(stray) > 1 else ""
        raise PlanError(
            f"step {stray[0]!r} does not lead to the output {plan.output!r}{more}: nobody would read it; "
            "remove it, or name it in the `needs` of a step that does"
        )


def waves(plan: Plan) -> list[list[str]]:
    """Return the steps by depth, each wave in plan order. The steps of a wave need only steps of earlier waves."""
    import networkx as nx

    edges = _edges(plan)
    _acyclic(edges)
    place = {step.name: i for i, step in enumerate(plan.steps)}
    return [sorted(layer, key=place.__getitem__) for layer in nx.topological_generations(_digraph(edges))]


def critical_path(plan: Plan, weight: Weight = Step.token_cost) -> Chain:
    """Return the heaviest chain of steps that ends in the output (in any step, if the plan names none)."""
    edges, steps = _edges(plan), {step.name: step for step in plan.steps}
    length: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for name in _acyclic(edges):
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
            rows.append((str(depth), name + mark, _does(first), _some(needs(first))))
    columns = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join([*(cell.ljust(size) for cell, size in zip(row, columns, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    end = "* the output" if plan.output is not None else "which a flow makes first; what it makes next depends on them"
    lines.append(f"{counted(len(steps), 'step')}, {end}")
    return "\n".join(lines).encode("ascii", "replace").decode() + "\n"


# -- checks ------------------------------------------------------------------------------------------------------------


def _check_op(step: Step, steps: dict[str, Step], tools: frozenset[str] | None) -> None:
    match step.op:
        case Think(after=str() as after):
            target = steps[after]
            if target.op.kind == "call" or (target.op.kind == "join" and not target.expands):
                raise PlanError(
                    f"step {step.name!r} is `after` {after!r}, a {target.op.kind}: only a think step has a context"
                )
        case Call(tool=tool) if tools is not None and tool not in tools and tool != MORE_TOOLS:
            hint = did_you_mean(tool, tools) or (f"; there are {_some(sorted(tools))}" if tools else "; none was given")
            raise PlanError(f"step {step.name!r} calls the tool {tool!r}, which is not there{hint}")
        case _:
            pass


def _edges(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return each step's needs, those outside the plan (a patch may have some) left out."""
    names = {step.name for step in plan.steps}
    return {step.name: tuple(name for name in needs(step) if name in names) for step in plan.steps}


def _order(edges: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the steps with needs before those that need them, without those on or behind a cycle (Kahn, 1962)."""
    missing = {name: len(deps) for name, deps in edges.items()}
    readers: dict[str, list[str]] = {name: [] for name in edges}
    for name, deps in edges.items():
        for dep in deps:
            readers[dep].append(name)
    order = [name for name, count in missing.items() if count == 0]
    for name in order:
        for reader in readers[name]:
            missing[reader] -= 1
            if missing[reader] == 0:
                order.append(reader)
    return order


def _acyclic(edges: dict[str, tuple[str, ...]]) -> list[str]:
    order = _order(edges)
    if len(order) < len(edges):
        raise PlanError("the plan has a cycle: " + " needs ".join(_cycle(edges)))
    return order


def _cycle(edges: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the names along one cycle, the first one again at the end."""
    import networkx as nx

    around: list[tuple[str, str]] = list(nx.find_cycle(_digraph(edges)))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    heads = [head for head, _ in reversed(around)]  # edges run from need to reader, the sentence the other way
    return [*heads, heads[0]]


def _digraph(edges: dict[str, tuple[str, ...]]) -> nx.DiGraph[str]:
    """Return the plan's graph, an edge from each need to each step that has it."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(edges)
    graph.add_edges_from((dep, name) for name, deps in edges.items() for dep in deps)
    return graph


def _not_leading_to(output: str, edges: dict[str, tuple[str, ...]]) -> list[str]:
    read = {output}
    todo = [output]
    while todo:
        for dep in edges[todo.pop()]:
            if dep not in read:
                read.add(dep)
                todo.append(dep)
    return [name for name in edges if name not in read]


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


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed) if len(listed) <= 6 else f"{', '.join(listed[:5])} and {len(listed) - 5} more"


def _html(line: str) -> str:
    for raw, safe in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", " ")):
        line = line.replace(raw, safe)
    return line


def _quoted(line: str) -> str:
    return line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
