"""Run a plan as steps of a flow. A node starts when its referenced values exist; conditions, loops and items decide at
run time which steps exist."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from plait.core.errors import PlannerError
from plait.core.flow import Context, ask_a_person
from plait.core.ops import ToolCall
from plait.core.step_handles import Promise, StepHandle
from plait.core.tools.tool import ToolSpec

from .plan import QUESTION, WorkflowNode, WorkflowPlan, WorkflowRef, as_reference, fill, references
from .validation import has_effects, order_nodes

MOST_ITEMS = 1000
"""Maximum number of items of one `foreach`."""
Step = StepHandle[object]


class GivenValue(NamedTuple):
    """A value that no node produces: the question, or an item of a list."""

    value: JsonValue
    steps: tuple[Step, ...] = ()
    """Steps that produced the value."""


Scope = Mapping[str, GivenValue | Promise[Step]]


class Runner:
    """Runs the nodes of one plan."""

    def __init__(self, ctx: Context, question: str, tools: Mapping[str, ToolSpec]) -> None:
        self._ctx, self._tools = ctx, tools
        self._scope: dict[str, GivenValue | Promise[Step]] = {QUESTION: GivenValue(question)}

    async def run(self, plan: WorkflowPlan) -> dict[str, Step | BaseException]:
        """Run a plan's nodes. Return for each node the step with its value, or its exception."""
        scope, ended = self._start(plan.nodes, self._scope, "")
        self._scope = dict(scope)
        return dict(zip((node.id for node in plan.nodes), await ended, strict=True))

    async def answer(self, value: JsonValue) -> Step:
        """Return the step whose value is the plan's answer. Raises the exception of a failed node that it needs."""
        ref = as_reference(value)
        look, steps = await self._resolve([value], self._scope)
        # The answer is a node's unchanged value: this step is the answer, and the value keeps its type.
        if ref is not None and not ref.path and len(steps) == 1:
            return steps[0]
        return self._ctx.answer(fill(value, look), "as the plan words it", name="answer-1")

    def _start(
        self, nodes: Sequence[WorkflowNode], outer: Scope, prefix: str, control: Sequence[Step] = ()
    ) -> tuple[Scope, Promise[list[Step]]]:
        """Start all nodes of a block in parallel. Return their scope, and a promise of all nodes. `control`: steps that
        decided that the block runs."""
        before = order_nodes(nodes, self._tools)
        scope = dict(outer)
        started = self._ctx.gather(
            *(self._node(node, scope, before[node.id], prefix, control) for node in nodes), return_exceptions=True
        )
        for node, step in zip(nodes, started.members, strict=True):
            scope[node.id] = step  # pyright: ignore[reportArgumentType]  # none has begun yet
        return scope, started

    async def _body(
        self, nodes: Sequence[WorkflowNode], outer: Scope, prefix: str, control: Sequence[Step]
    ) -> tuple[Step, Scope]:
        """Run a block to its end and return its last node's step. Raises the exception of any failed node."""
        scope, started = self._start(nodes, outer, prefix, control)
        ended = await started
        for end in ended:
            if isinstance(end, BaseException):
                raise end
        return ended[-1], scope

    async def _node(
        self, node: WorkflowNode, scope: Scope, before: Sequence[str], prefix: str, control: Sequence[Step]
    ) -> Step:
        waits = [await _step(scope[name]) for name in before]
        name, after = f"{prefix}{node.id}", [*control, *(step for wait in waits for step in wait)]
        match node.kind:
            case "call":
                made = await self._call(node, scope, name, after)
            case "review":
                look, steps = await self._resolve([node.over], scope)
                args = {"question": fill(node.over, look), "choices": list(node.choices)}
                made = self._make_call(ask_a_person.name, args, [*after, *steps], name, "review")
            case "if":
                made = await self._run_branch(node, scope, name, after)
            case "foreach":
                made = await self._run_for_each(node, scope, name, after)
            case "while":
                made = await self._run_loop(node, scope, name, after)
        await made
        return made

    async def _call(self, node: WorkflowNode, scope: Scope, name: str, after: Sequence[Step]) -> Step:
        args = dict(node.args or {})
        look, steps = await self._resolve(list(args.values()), scope)
        return self._make_call(node.tool, fill(args, look), [*after, *steps], name, node.tool)

    def _make_call(self, tool: str, args: JsonValue, after: Sequence[Step], name: str, label: str) -> Step:
        values = args if isinstance(args, dict) else {}
        call = ToolCall(tool=tool, args={key: {"$literal": value} for key, value in values.items()})
        return self._ctx.called(call, dict.fromkeys(after), name=name, label=label)

    async def _run_branch(self, node: WorkflowNode, scope: Scope, name: str, control: Sequence[Step]) -> Step:
        look, steps = await self._resolve([node.over], scope)
        held = condition_holds(node.over, look)
        block = node.blocks[0 if held else 1]
        why = "the condition holds" if held else "the condition does not hold"
        if not block:
            return self._ctx.answer(None, why, name=name, label="if")
        last, _ = await self._body(block, scope, f"{name}.", [*control, *steps])
        return self._ctx.answer(last, why, name=name, label="if")

    async def _run_for_each(self, node: WorkflowNode, scope: Scope, name: str, control: Sequence[Step]) -> Step:
        look, steps = await self._resolve([node.over], scope)
        items = fill(node.over, look)
        if not isinstance(items, list) or len(items) > MOST_ITEMS:
            what = f"{len(items):,} items" if isinstance(items, list) else f"{items!r:.80}, which is no list"
            raise PlannerError(f"{node.id}: `foreach` takes a list of {MOST_ITEMS:,} items at most, not {what}")
        scopes = [{**scope, node.name: GivenValue(item, tuple(steps))} for item in items]
        work = (
            self._body(node.blocks[0], scope, f"{name}.{at}.", [*control, *steps]) for at, scope in enumerate(scopes, 1)
        )
        # Rounds with side effects run in the order of the items; other rounds run in parallel.
        ended = [await body for body in work] if has_effects(node, self._tools) else await self._ctx.gather(*work)
        if not ended:
            return self._ctx.answer([], "there are no items", name=name, label="foreach")
        return self._ctx.join([last for last, _ in ended], name=name, label=f"foreach {node.name}")

    async def _run_loop(self, node: WorkflowNode, scope: Scope, name: str, control: Sequence[Step]) -> Step:
        before, decided = GivenValue(None), list(control)
        for number in range(1, node.most + 1):
            last, inside = await self._body(node.blocks[0], {**scope, node.id: before}, f"{name}.{number}.", decided)
            look, decided = await self._resolve([node.over], inside)
            if not condition_holds(node.over, look):
                return self._ctx.answer(last, f"{number} of at most {node.most} rounds", name=name, label="while")
            before = GivenValue(last.value, (last,))  # pyright: ignore[reportUnknownMemberType]
        return self._ctx.answer(last, f"the limit of {node.most} rounds was reached", name=name, label="while")

    async def _resolve(
        self, values: Sequence[JsonValue], scope: Scope
    ) -> tuple[dict[WorkflowRef, JsonValue], list[Step]]:
        """Return the values of all references in some values, and the steps that produced them."""
        stand: dict[WorkflowRef, JsonValue] = {}
        steps: dict[Step, None] = {}
        for ref in references(list(values)):
            here = scope[ref.name]
            made = await _step(here)
            steps |= dict.fromkeys(made)
            stand[ref] = _part(here.value if isinstance(here, GivenValue) else made[0].value, ref)
        return stand, list(steps)


async def _step(here: GivenValue | Promise[Step]) -> list[Step]:
    return list(here.steps) if isinstance(here, GivenValue) else [await here]


def _part(value: JsonValue, ref: WorkflowRef) -> JsonValue:
    for key in ref.path:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise PlannerError(f"{ref}: there is no {key!r} in {value!r:.120}")
    return value


def condition_holds(condition: JsonValue, look: Mapping[WorkflowRef, JsonValue]) -> bool:
    """Return whether a condition holds. Raises `PlannerError` for values that cannot be compared."""
    match condition:
        case {"all": list() as several}:
            return all(condition_holds(condition, look) for condition in several)
        case {"any": list() as several}:
            return any(condition_holds(condition, look) for condition in several)
        case {"not": inner}:
            return not condition_holds(inner, look)
        case {"left": left, "op": str() as op, "right": right}:
            return _compare(fill(left, look), op, fill(right, look))
        case _:
            return bool(fill(condition, look))


def _compare(left: JsonValue, op: str, right: JsonValue) -> bool:
    match op:
        case "==" | "!=":
            return (left == right) == (op == "==")
        case "in" | "contains":
            inner, outer = (left, right) if op == "in" else (right, left)
            # JSON names are strings: an object never contains a number.
            if isinstance(outer, list | dict):
                return inner in outer if isinstance(outer, list) or isinstance(inner, str) else False
            if isinstance(outer, str) and isinstance(inner, str):
                return inner in outer
        case _:
            sign = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[op]
            if isinstance(left, int | float) and isinstance(right, int | float):
                return sign(left, right)
            if isinstance(left, str) and isinstance(right, str):
                return sign(left, right)
    raise PlannerError(f"{left!r:.80} {op} {right!r:.80} cannot be compared")
