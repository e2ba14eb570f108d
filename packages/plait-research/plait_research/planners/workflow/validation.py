"""Check a whole plan before it runs, and find all its faults."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from pydantic import JsonValue

from plait.core.tools import schemas
from plait.core.tools.schemas import Schema
from plait.core.tools.tool import ToolSpec

from .plan import QUESTION, WorkflowFault, WorkflowNode, WorkflowPlan, WorkflowRef, as_reference, references, walk_nodes

_TEXT: Schema = {"type": "string"}
_NEAR = 3
"""Maximum number of candidates of one fault."""


def find_faults(plan: WorkflowPlan, tools: Mapping[str, ToolSpec]) -> list[WorkflowFault]:
    """Return all faults of a plan: unreadable parts, missing tools, arguments and references, types
    that do not fit, nodes that wait for one another, and unused values."""
    return list(dict.fromkeys([*plan.broken, *_Checker(plan, tools).faults()]))


@dataclass(slots=True)
class _Checker:
    plan: WorkflowPlan
    tools: Mapping[str, ToolSpec]
    noted: list[WorkflowFault] = field(default_factory=list[WorkflowFault])
    known: dict[str, Schema] = field(default_factory=dict[str, Schema])
    """Schemas of values, by the id of their node."""

    def faults(self) -> list[WorkflowFault]:
        ids = [node.id for node in walk_nodes(self.plan.nodes)]
        for name in dict.fromkeys(name for name in ids if ids.count(name) > 1):
            self._add_fault(name, "form", f"{ids.count(name)} steps have this id: give each its own")
        self._block(self.plan.nodes, {QUESTION: _TEXT})
        if self.plan.answer is not None:
            scope = {QUESTION: _TEXT, **{node.id: self._schema(node, {}) for node in self.plan.nodes}}
            self._references("answer", self.plan.answer, scope)
            self._unused()
        return self.noted

    def _add_fault(self, node: str, kind: str, message: str, near: Sequence[str] = ()) -> None:
        self.noted.append(WorkflowFault(node, kind, message, tuple(near[:_NEAR])))

    # -- what a node sees --

    def _block(self, nodes: Sequence[WorkflowNode], outer: Mapping[str, Schema]) -> None:
        scope = {**outer, **{node.id: self._schema(node, outer) for node in nodes}}
        for node in nodes:
            here = {name: schema for name, schema in scope.items() if name != node.id}
            self._node(node, here, scope)
            for at, block in enumerate(node.blocks):
                self._block(block, self._body_scope(node, here, at))
        self._cycles(nodes)

    def _body_scope(self, node: WorkflowNode, scope: Mapping[str, Schema], at: int = 0) -> dict[str, Schema]:
        """Return the scope of a node's body."""
        inner = dict(scope)
        if node.kind == "foreach":
            inner[node.name] = self._item(node, scope)
        if node.kind == "while":
            inner[node.id] = self._schema(node, scope)  # value of the round before
        return inner

    def _item(self, node: WorkflowNode, scope: Mapping[str, Schema]) -> Schema:
        ref = as_reference(node.over)
        value = schemas.part(scope[ref.name], ref.path) if ref is not None and ref.name in scope else {}
        return schemas.part(value or {}, ["0"]) or {} if (value or {}).get("type") == "array" else {}

    def _schema(self, node: WorkflowNode, scope: Mapping[str, Schema]) -> Schema:
        """Return the known schema of a node's value."""
        if node.id in self.known:
            return self.known[node.id]
        self.known[node.id] = {}  # placeholder during the recursion
        last = node.blocks[0][-1] if node.blocks and node.blocks[0] else None
        match node.kind:
            case "call":
                spec = self.tools.get(node.tool)
                schema: Schema = spec.returns if spec is not None else {}
            case "review":
                schema = {} if node.choices else _TEXT
            case "foreach":
                inner = self._schema(last, scope) if last is not None else {}
                defs = {"$defs": inner["$defs"]} if "$defs" in inner else {}
                schema = {"type": "array", "items": dict(inner), **defs}
            case "while":
                schema = self._schema(last, scope) if last is not None else {}
            case "if":
                schema = {}
        self.known[node.id] = schema
        return schema

    # -- one node --

    def _node(self, node: WorkflowNode, scope: Mapping[str, Schema], siblings: Mapping[str, Schema]) -> None:
        for name in node.after:
            if name not in siblings or name == node.id:
                self._add_fault(
                    node.id, "reference", f"`after` names {name!r}, no step beside it", _similar_names(name, siblings)
                )
        if node.kind == "call":
            self._call(node, scope)
            return
        if node.kind == "while":
            scope = {
                **self._body_scope(node, scope),
                **{inner.id: self._schema(inner, scope) for inner in node.blocks[0]},
            }
        self._references(node.id, node.over, scope)
        ref = as_reference(node.over)
        if node.kind == "foreach" and ref is not None and ref.name in scope:
            part = schemas.part(scope[ref.name], ref.path)
            if part is not None and not schemas.is_assignable(part, {"type": "array"}):
                lists = [str(place) for place, one in list_parts(scope) if one.get("type") == "array"]
                self._add_fault(node.id, "type", f"{ref} is no list, but {_kind(part)}", lists)

    def _call(self, node: WorkflowNode, scope: Mapping[str, Schema]) -> None:
        spec = self.tools.get(node.tool)
        args = node.args or {}
        if spec is None:
            self._add_fault(node.id, "tool", f"there is no tool {node.tool!r}", _similar_names(node.tool, self.tools))
            for value in args.values():
                self._references(node.id, value, scope)
            return
        known = schemas.arguments(spec.parameters)
        closed = spec.parameters.get("additionalProperties") in (None, False)
        for name, value in args.items():
            if name not in known and closed:
                free = [name for name in known if name not in args]
                near = _similar_names(name, free) or free
                self._add_fault(node.id, "argument", f"{node.tool} has no argument {name!r}", near)
            self._argument(node, name, value, known.get(name, {}), scope)
        for name in schemas.required_arguments(spec.parameters):
            if name not in args:
                near = self._list_sources(name, known.get(name, {}), scope)
                self._add_fault(node.id, "missing", f"{node.tool} needs the argument {name!r}", near)

    def _argument(
        self, node: WorkflowNode, name: str, value: JsonValue, want: Schema, scope: Mapping[str, Schema]
    ) -> None:
        if not self._references(node.id, value, scope):
            return
        ref = as_reference(value)
        given = self._part(ref, scope) if ref is not None else _argument_schema(value)
        if given is None or schemas.is_assignable(given, want):
            return
        problem = f"{name!r} of {node.tool} takes {_kind(want)}, but {ref or 'it'} is {_kind(given)}"
        self._add_fault(node.id, "type", problem, self._list_sources(name, want, scope))

    def _part(self, ref: WorkflowRef, scope: Mapping[str, Schema]) -> Schema | None:
        return schemas.part(scope[ref.name], ref.path)

    def _references(self, node: str, value: JsonValue, scope: Mapping[str, Schema]) -> bool:
        """Return whether all references in a value resolve, and add a fault for each that does not."""
        good = True
        for ref in references(value):
            if ref.name not in scope:
                good = False
                self._add_fault(
                    node,
                    "reference",
                    f"{ref} refers to nothing that is seen here",
                    _similar_names(ref.name, scope, "$"),
                )
            elif self._part(ref, scope) is None:
                good = False
                near = [str(place) for place, _ in list_parts({ref.name: scope[ref.name]})]
                best = difflib.get_close_matches(str(ref), near, n=_NEAR, cutoff=0.4)
                self._add_fault(node, "part", f"{ref} is no part of that value", best or near)
        return good

    def _list_sources(self, name: str, want: Schema, scope: Mapping[str, Schema]) -> list[str]:
        """Return candidates for an argument: parts of existing values, then tools that produce such a value."""
        kind = schemas.kind(name, want)
        parts = [
            str(ref)
            for ref, schema in list_parts(scope)
            if schemas.is_assignable(schema, want)
            and (schemas.kind(ref.path[-1] if ref.path else ref.name, schema) == kind != "" or name in ref.path[-1:])
        ]
        makers = [tool.name for tool in self.tools.values() if kind and kind in schemas.made_kinds(tool.returns)]
        return [*parts, *makers]

    # -- the whole --

    def _cycles(self, nodes: Sequence[WorkflowNode]) -> None:
        try:
            order_nodes(nodes, self.tools)
        except CycleError as error:
            ring = [str(name) for name in error.args[1]]
            self._add_fault(ring[0], "cycle", f"steps wait for one another: {' → '.join(ring)}")

    def _unused(self) -> None:
        used = {ref.name for ref in references(self.plan.answer)}
        for node in walk_nodes(self.plan.nodes):
            used |= {ref.name for value in node.own for ref in references(value)} | set(node.after)
        lasts = {block[-1].id for node in walk_nodes(self.plan.nodes) for block in node.blocks if block}
        for node in walk_nodes(self.plan.nodes):
            if node.id not in used | lasts and not has_effects(node, self.tools):
                self._add_fault(node.id, "unused", "its value is unused: use it, or leave the step out")


def order_nodes(nodes: Sequence[WorkflowNode], tools: Mapping[str, ToolSpec]) -> dict[str, list[str]]:
    """Return for each node of a block the nodes of the block that must end before it, in plan order. Nodes with side
    effects keep their written order. Raises `CycleError`."""
    beside = {node.id for node in nodes}
    before: dict[str, list[str]] = {}
    changing = ""
    for node in nodes:
        refs = [ref.name for part in (node, *node.inner()) for value in part.own for ref in references(value)]
        refs += [name for part in (node, *node.inner()) for name in part.after]
        own = {inner.id for inner in node.inner()} | ({node.id} if node.kind == "while" else set())
        needs = [name for name in dict.fromkeys(refs) if name in beside and name not in own]
        if has_effects(node, tools):
            needs += [changing] if changing and changing not in needs else []
            changing = node.id
        before[node.id] = needs
    TopologicalSorter(before).prepare()
    return before


def has_effects(node: WorkflowNode, tools: Mapping[str, ToolSpec]) -> bool:
    """Return whether a node has side effects or asks a person."""
    return any(
        part.kind == "review" or (part.kind == "call" and (part.tool not in tools or tools[part.tool].side_effects))
        for part in (node, *node.inner())
    )


def list_parts(scope: Mapping[str, Schema], most: int = 200) -> Iterator[tuple[WorkflowRef, Schema]]:
    """Yield the available values and their parts, up to three levels deep, with the first item of each list."""
    todo: list[tuple[WorkflowRef, Schema]] = [
        (WorkflowRef(name, ()), schema) for name, schema in scope.items() if name != QUESTION
    ]
    count = 0
    while todo and count < most:
        ref, schema = todo.pop(0)
        here = schemas.part(schema, ()) or {}
        count += 1
        yield ref, here
        if len(ref.path) >= 3:
            continue
        properties = here.get("properties")
        keys = list(properties) if isinstance(properties, dict) else ["0"] if here.get("type") == "array" else []
        for key in keys:
            inner = schemas.part(here, [key])
            if inner is not None:
                todo.append((WorkflowRef(ref.name, (*ref.path, key)), inner))


def _argument_schema(value: JsonValue) -> Schema:
    """Return the schema of an argument that is not a single reference."""
    return _TEXT if isinstance(value, str) else schemas.schema_of(value)


def _kind(schema: Schema) -> str:
    kind = schema.get("format") or schema.get("title") or schema.get("type") or "anything"
    return kind if isinstance(kind, str) else "several kinds"


def _similar_names(name: str, known: Mapping[str, object] | Sequence[str], sign: str = "") -> list[str]:
    return [f"{sign}{near}" for near in difflib.get_close_matches(name, list(known), n=_NEAR, cutoff=0.55)]
