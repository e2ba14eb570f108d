"""The plans of the planner `workflow`: parse a model's plan into nodes, resolve references, apply repairs, and remove a
plan's values for a library."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

from pydantic import JsonValue

from plait.core.values import as_text

Kind = Literal["call", "if", "foreach", "while", "review"]
QUESTION = "question"
"""`$question`: the question itself."""
MOST_NODES, DEEPEST = 200, 6
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_PATH = r"([A-Za-z_][A-Za-z0-9_]{0,39})((?:\.\w{1,60}|\[\d{1,6}\]){0,12})"
_WHOLE = re.compile(rf"\${_PATH}")
_INSIDE = re.compile(rf"\{{\${_PATH}\}}")
_STEP = re.compile(r"\w+")
_KEYS: Mapping[Kind, frozenset[str]] = {
    "call": frozenset({"id", "call", "args", "after"}),
    "if": frozenset({"id", "if", "then", "else", "after"}),
    "foreach": frozenset({"id", "foreach", "as", "do", "after"}),
    "while": frozenset({"id", "while", "at_most", "do", "after"}),
    "review": frozenset({"id", "review", "choices", "after"}),
}
KINDS: tuple[Kind, ...] = tuple(_KEYS)
_BLOCKS: Mapping[Kind, tuple[str, ...]] = {"if": ("then", "else"), "foreach": ("do",), "while": ("do",)}
OPERATORS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in", "contains"})


class WorkflowFault(NamedTuple):
    """One fault of a plan."""

    node: str
    """Id of the node; empty for the plan as a whole, `answer` for its answer."""
    kind: str
    """`form`, `tool`, `argument`, `missing`, `type`, `reference`, `part`, `cycle`, `unused`."""
    message: str
    candidates: tuple[str, ...] = ()
    """Candidates for the intended name or value."""

    def __str__(self) -> str:
        near = f" (perhaps {', '.join(self.candidates)})" if self.candidates else ""
        return f"{self.node}: {self.message}{near}" if self.node else f"{self.message}{near}"


class WorkflowRef(NamedTuple):
    """A reference to a value, or to a part of it: `$flights.0.id`."""

    name: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((f"${self.name}", *self.path))


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """One node (step) of a plan."""

    id: str
    kind: Kind
    tool: str = ""
    """Of a call."""
    args: Mapping[str, JsonValue] | None = None
    """Of a call."""
    over: JsonValue = None
    """The list of a `foreach`, the condition of an `if` or `while`, or the question of a `review`."""
    name: str = ""
    """Name of an item in the body of a `foreach`."""
    most: int = 1
    """Maximum number of runs of the body of a `while`."""
    choices: tuple[JsonValue, ...] = ()
    """Of a review."""
    blocks: tuple[tuple[WorkflowNode, ...], ...] = ()
    """The node's bodies. An `if` has one for the true and one for the false condition."""
    after: tuple[str, ...] = ()
    """Nodes that must end first, although their values are unused."""

    @property
    def own(self) -> tuple[JsonValue, ...]:
        """Values that may contain references, without the bodies."""
        return (dict(self.args or {}), self.over)

    def inner(self) -> Iterator[WorkflowNode]:
        """Yield all nodes in its bodies, recursively."""
        for block in self.blocks:
            yield from walk_nodes(block)

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as a model writes it."""
        row: dict[str, JsonValue] = {"id": self.id}
        match self.kind:
            case "call":
                row |= {"call": self.tool, "args": dict(self.args or {})}
            case "review":
                row |= {"review": self.over, "choices": list(self.choices)}
            case _:
                row[self.kind] = self.over
                row |= {"as": self.name} if self.kind == "foreach" else {}
                row |= {"at_most": self.most} if self.kind == "while" else {}
                for key, block in zip(_BLOCKS[self.kind], self.blocks, strict=True):
                    row[key] = [node.to_json() for node in block]
        if self.after:
            row["after"] = list(self.after)
        return row


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """A plan."""

    nodes: tuple[WorkflowNode, ...] = ()
    answer: JsonValue = None
    """Template of the answer; `null`: the model words the answer from all results."""
    broken: tuple[WorkflowFault, ...] = ()
    """Faults of unreadable parts."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return it as a model writes it."""
        steps: list[JsonValue] = [node.to_json() for node in self.nodes]
        return {"steps": steps, **({} if self.answer is None else {"answer": self.answer})}


def walk_nodes(nodes: Iterable[WorkflowNode]) -> Iterator[WorkflowNode]:
    """Yield nodes and all nodes inside them."""
    for node in nodes:
        yield node
        yield from node.inner()


def references(value: JsonValue) -> list[WorkflowRef]:
    """Return the references in a value, including `{$name}` inside texts; `$$` is a dollar sign.

    >>> [str(each) for each in references(["$a.rows[0]", "the {$b.x}", "$$5"])]
    ['$a.rows.0', '$b.x']
    """
    match value:
        case str():
            whole = _WHOLE.fullmatch(value)
            return [_ref(match) for match in ([whole] if whole else _INSIDE.finditer(value))]
        case list():
            return [ref for part in value for ref in references(part)]
        case dict():
            return [ref for part in value.values() for ref in references(part)]
        case _:
            return []


def as_reference(value: JsonValue) -> WorkflowRef | None:
    """Return the reference if a value consists of a single reference."""
    match = _WHOLE.fullmatch(value) if isinstance(value, str) else None
    return _ref(match) if match else None


def fill(value: JsonValue, look: Mapping[WorkflowRef, JsonValue]) -> JsonValue:
    """Return a value with its references replaced by their values."""
    match value:
        case str():
            ref = as_reference(value)
            if ref is not None:
                return look[ref]
            text = _INSIDE.sub(lambda match: as_text(look[_ref(match)]), value)
            return text.replace("$$", "$", 1) if text.startswith("$$") else text
        case list():
            return [fill(part, look) for part in value]
        case dict():
            return {key: fill(part, look) for key, part in value.items()}
        case _:
            return value


def _ref(match: re.Match[str]) -> WorkflowRef:
    return WorkflowRef(match[1], tuple(_STEP.findall(match[2])))


# -- reading -----------------------------------------------------------------------------------------------------------


def parse(value: JsonValue) -> WorkflowPlan:
    """Return the plan in an object, with a fault for each unreadable part. Never raises."""
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list):
        problem = 'the plan is no JSON object with "steps": write {"steps": […], "answer": …}'
        return WorkflowPlan(broken=(WorkflowFault("", "form", problem),))
    broken: list[WorkflowFault] = []
    nodes = _block(value["steps"], broken, 0)
    if (count := len(list(walk_nodes(nodes)))) > MOST_NODES:
        broken.append(WorkflowFault("", "form", f"the plan has {count} steps: {MOST_NODES} at most, use foreach"))
        nodes = nodes[:0]
    return WorkflowPlan(nodes, value.get("answer"), tuple(broken))


def _block(value: JsonValue, broken: list[WorkflowFault], depth: int) -> tuple[WorkflowNode, ...]:
    if not isinstance(value, list):
        broken.append(WorkflowFault("", "form", f"{_short(value)} is no list of steps"))
        return ()
    nodes = (_node(row, at, broken, depth) for at, row in enumerate(value[: MOST_NODES + 1], 1))
    return tuple(readable for readable in nodes if readable is not None)


def _node(value: JsonValue, at: int, broken: list[WorkflowFault], depth: int) -> WorkflowNode | None:
    if not isinstance(value, dict):
        broken.append(WorkflowFault("", "form", f"{_short(value)} is no step: write an object"))
        return None
    given = value.get("id")
    node = given if isinstance(given, str) and _ID.fullmatch(given) and given != QUESTION else ""
    kinds: list[Kind] = [kind for kind in KINDS if kind in value]
    wrong = [
        *([] if node else [f"step {at} needs an `id` of letters, digits and _ that is not `{QUESTION}`"]),
        *([] if len(kinds) == 1 else [f"a step has exactly one of {', '.join(KINDS)}, this one {len(kinds)}"]),
        *([f"steps are nested deeper than {DEEPEST}"] if depth > DEEPEST else []),
    ]
    if wrong:
        broken += [WorkflowFault(node, "form", reason) for reason in wrong]
        return None
    kind = kinds[0]
    strange = [key for key in value if key not in _KEYS[kind]]
    if strange:
        problem = f"a step with `{kind}` has no {', '.join(map(repr, strange[:5]))}"
        broken.append(WorkflowFault(node, "form", problem, tuple(sorted(_KEYS[kind]))))
    blocks = tuple(_block(value.get(key, []), broken, depth + 1) for key in _BLOCKS.get(kind, ()))
    after = tuple(name for name in _list(value.get("after")) if isinstance(name, str))
    fault, made = _READERS[kind](value, WorkflowNode(node, kind, after=after, blocks=blocks))
    if kind in ("foreach", "while") and not any(blocks):
        fault = fault or "`do` has no steps"
    if fault:
        broken.append(WorkflowFault(node, "form", fault))
    return made


def _read_call(value: Mapping[str, JsonValue], node: WorkflowNode) -> tuple[str, WorkflowNode]:
    head, args = value["call"], value.get("args", {})
    fault = "" if isinstance(head, str) and isinstance(args, dict) else "`call` is a name, `args` an object"
    return fault, replace(node, tool=str(head), args=args if isinstance(args, dict) else {})


def _read_review(value: Mapping[str, JsonValue], node: WorkflowNode) -> tuple[str, WorkflowNode]:
    head = value["review"]
    fault = "" if isinstance(head, str) and head.strip() else "`review` is a question, a text"
    return fault, replace(node, over=head, choices=tuple(_list(value.get("choices"))))


def _read_foreach(value: Mapping[str, JsonValue], node: WorkflowNode) -> tuple[str, WorkflowNode]:
    head, name = value["foreach"], value.get("as", "item")
    fault = "" if isinstance(head, list) or as_reference(head) else "`foreach` is a list, or one reference"
    if not isinstance(name, str):
        return "`as` is a name", replace(node, over=head, name="item")
    return fault if _ID.fullmatch(name) else "`as` is a name", replace(node, over=head, name=name)


def _read_condition(value: Mapping[str, JsonValue], node: WorkflowNode) -> tuple[str, WorkflowNode]:
    head, most = value[node.kind], value.get("at_most", 10)
    fault = wrong_condition(head)
    is_number = isinstance(most, int) and not isinstance(most, bool)
    if node.kind == "while" and not (is_number and 1 <= cast("int", most) <= 1000):
        fault, most = fault or "`at_most` is a number from 1 to 1000", 1
    return fault, replace(node, over=head, most=most if isinstance(most, int) else 1)


_READERS: dict[Kind, Callable[[Mapping[str, JsonValue], WorkflowNode], tuple[str, WorkflowNode]]] = {
    "call": _read_call,
    "review": _read_review,
    "foreach": _read_foreach,
    "while": _read_condition,
    "if": _read_condition,
}


def wrong_condition(value: JsonValue, depth: int = 0) -> str:
    """Return the fault of a condition, or an empty text."""
    match value:
        case _ if depth > DEEPEST:
            return f"conditions are nested deeper than {DEEPEST}"
        case bool():
            return ""
        case str() if as_reference(value):
            return ""
        case {"all": list() as several} | {"any": list() as several} if len(value) == 1:
            return next(filter(None, (wrong_condition(condition, depth + 1) for condition in several)), "")
        case {"not": inner} if len(value) == 1:
            return wrong_condition(inner, depth + 1)
        case {"left": _, "op": str() as op, "right": _} if len(value) == 3:
            return "" if op in OPERATORS else f"{op!r} compares nothing: use one of {' '.join(sorted(OPERATORS))}"
        case _:
            form = '{"left": …, "op": "==", "right": …}, {"all": […]}, {"any": […]}, {"not": …} or one reference'
            return f"{_short(value)} is no condition: write {form}"


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else ()


def _short(value: JsonValue) -> str:
    text = as_text(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# -- repairs -----------------------------------------------------------------------------------------------------------


def apply_repair(plan: WorkflowPlan, reply: JsonValue, bad: Collection[str]) -> WorkflowPlan | None:
    """Return a plan with a repair: `{"replace": {"id": step or [steps]}, "answer": …}`. Only the nodes `bad` are
    replaced; those that are not there are added. The empty name means the whole plan. Return `None` if the reply
    has no applicable repair."""
    if not isinstance(reply, dict):
        return None
    if isinstance(reply.get("steps"), list):  # a whole new plan
        return parse(reply) if "" in bad or not plan.nodes else None
    given = reply.get("replace", {})
    if not isinstance(given, dict) or not (given or (plan.nodes and "answer" in reply)):
        return None
    written = plan.to_json()
    there = {node.id for node in walk_nodes(plan.nodes)}
    new: dict[str, list[JsonValue]] = {
        key: value if isinstance(value, list) else [value] for key, value in given.items() if key in bad
    }
    steps = _replace_steps(written["steps"], {key: value for key, value in new.items() if key in there})
    added = [row for key, value in new.items() if key not in there and key not in ("", "answer") for row in value]
    answer = reply["answer"] if "answer" in reply and "answer" in bad else plan.answer
    return parse({"steps": [*steps, *added], "answer": answer})


def _replace_steps(steps: JsonValue, new: Mapping[str, list[JsonValue]]) -> list[JsonValue]:
    rows: list[JsonValue] = []
    for row in _list(steps):
        if not isinstance(row, dict):
            continue
        if (name := row.get("id")) in new:
            rows += new[str(name)]
            continue
        inner = {key: _replace_steps(row[key], new) for key in ("then", "else", "do") if key in row}
        rows.append({**row, **inner})
    return rows


def drop_nodes(plan: WorkflowPlan, ids: frozenset[str]) -> WorkflowPlan:
    """Return a plan without some nodes."""

    def keep_nodes(nodes: Sequence[WorkflowNode]) -> tuple[WorkflowNode, ...]:
        stay = (node for node in nodes if node.id not in ids)
        return tuple(replace(node, blocks=tuple(map(keep_nodes, node.blocks))) for node in stay)

    return replace(plan, nodes=keep_nodes(plan.nodes))


def abstract(plan: WorkflowPlan) -> dict[str, JsonValue]:
    """Return a plan without the values of its arguments: `"<city>"` replaces a city. References stay, and so do numbers
    and texts in conditions, which are part of the plan's logic."""

    def of(name: str, value: JsonValue) -> JsonValue:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, dict):
            return {key: of(key, part) for key, part in value.items()}
        if isinstance(value, list):
            return [of(name, part) for part in value]
        return value if references(value) else f"<{name}>"

    def node(value: JsonValue) -> JsonValue:
        if not isinstance(value, dict):
            return value
        inner = {key: [node(row) for row in _list(value[key])] for key in ("then", "else", "do") if key in value}
        args = value.get("args")
        done = {"args": {name: of(name, part) for name, part in args.items()}} if isinstance(args, dict) else {}
        over = {"foreach": of("item", value["foreach"])} if "foreach" in value else {}
        return {**value, **inner, **done, **over}

    written = plan.to_json()
    return {**written, "steps": [node(row) for row in _list(written["steps"])]}
