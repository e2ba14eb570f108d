"""Planner `workflow`: a plan with conditions, loops and questions to people, checked completely before it runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, ask_a_person
from plait.core.ops import ToolCall
from plait.core.step_handles import First, Promise, StepFailed, StepHandle, Trajectory
from plait.core.tools.schemas import MORE_TOOLS, SHOWN, read_found_tools
from plait.core.tools.tool import ToolSpec
from plait.core.values import as_text
from plait.core.vocabulary import MaxTools, ObservationChars, Repairs, Rounds
from plait.planners._shared.json_text import read_object

from . import prompts
from .plan import (
    QUESTION,
    WorkflowFault,
    WorkflowNode,
    WorkflowPlan,
    WorkflowPlan as Plan,
    WorkflowRef,
    abstract,
    apply_repair,
    as_reference,
    drop_nodes,
    fill,
    parse,
    references,
    walk_nodes,
)
from .validation import find_faults, has_effects, order_nodes

__all__ = ["FIND_PLANS", "KEEP_PLAN", "Workflow"]


MOST_ITEMS = 1000
"""Maximum number of items of one `foreach`."""
MAX_CHANGES = 20
"""Maximum number of looks at a running plan."""
Step = StepHandle[object]


class GivenValue(NamedTuple):
    """A value that no node produces: the question, or an item of a list."""

    value: JsonValue
    steps: tuple[Step, ...] = ()
    """Steps that produced the value."""


Scope = Mapping[str, GivenValue | Promise[Step]]


class Runner:
    """Runs the nodes of one plan."""

    def __init__(self, ctx: Context, question: str, tools: Mapping[str, ToolSpec], plan: WorkflowPlan) -> None:
        self._ctx, self._tools, self.plan = ctx, tools, plan
        self._scope: dict[str, GivenValue | Promise[Step]] = {QUESTION: GivenValue(question)}
        self._ends: dict[str, Promise[Step]] = {}
        """The plan's nodes that were started; one that has not begun waits for others."""
        self._begun: set[str] = set()

    async def run(self, changes: Writer | None = None) -> dict[str, Step | BaseException]:
        """Run the plan's nodes; `changes` may change those that have not begun after each result. Return for each node
        the step with its value, or its exception."""
        self._start_plan()
        seen: set[str] = set()
        reasons, again, looks = "", False, 0
        while True:
            ended = {name: end for name, end in self._ends.items() if end.ended}
            new = {name: _read_outcome(end) for name, end in ended.items() if name in self._begun - seen}
            if changes is not None and (new or again) and looks < MAX_CHANGES:
                seen, looks = seen.union(new), looks + 1
                waiting = [node.id for node in self.plan.nodes if node.id not in self._begun]
                reasons = self._change(await changes.change(new, waiting, reasons))
                if reasons:
                    await self._ctx.answer(reasons, name=f"change-{looks}", label="change not made")
                again = bool(reasons and new)  # without a new result the model tries once more only
            elif len(ended) < len(self._ends):
                running = [end for end in self._ends.values() if not end.ended]
                await First(self._ctx.host, [self._ctx.gather(end, return_exceptions=True) for end in running],
                            None, lambda other: None, any_end=True)  # fmt: skip
            else:
                return {name: _read_outcome(end) for name, end in ended.items()}

    def _start_plan(self) -> None:
        """Start all nodes that have not begun, and those that wait already once more."""
        for name in [name for name in self._ends if name not in self._begun]:
            self._ctx.cancel(self._ends.pop(name), "the plan has changed")
        scope, _ = self._start(self.plan.nodes, {QUESTION: self._scope[QUESTION], **self._ends}, "")
        self._scope = dict(scope)
        self._ends = {node.id: end for node in self.plan.nodes if isinstance(end := scope[node.id], Promise)}

    def _change(self, reply: JsonValue) -> str:
        """Change the nodes that have not begun by a model's reply. Return why it is not possible, or an empty text."""
        given = reply.get("replace") if isinstance(reply, dict) else None
        begun = {node.id for node in walk_nodes(node for node in self.plan.nodes if node.id in self._begun)}
        late = [name for name in given if name in begun] if isinstance(given, dict) else []
        if late:
            return f"{', '.join(late)}: begun already, so a change needs a step with another id"
        plan = apply_repair(self.plan, reply, {"answer", *(given if isinstance(given, dict) else ())})
        if plan is None or plan == self.plan:
            return ""
        faults = find_faults(plan, self._tools)
        while drops := frozenset(fault.node for fault in faults if fault.kind == "unused") - begun:
            plan = drop_nodes(plan, drops)
            faults = find_faults(plan, self._tools)
        if wrong := [fault for fault in faults if fault.kind != "unused"]:
            return "; ".join(map(str, wrong[:5]))
        self.plan = plan
        for fault in faults:  # begun, and nothing reads its value any more
            if fault.node in self._ends:
                self._ctx.cancel(self._ends[fault.node], "nothing reads it")
        self._start_plan()
        return ""

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
        """Start all nodes of a block in parallel, without those that `outer` has. Return their scope, and a promise of
        all nodes. `control`: steps that decided that the block runs."""
        before = order_nodes(nodes, self._tools)
        scope, new = dict(outer), [node for node in nodes if prefix or node.id not in outer]
        started = self._ctx.gather(
            *(self._node(node, scope, before[node.id], prefix, control) for node in new), return_exceptions=True
        )
        for node, step in zip(new, started.members, strict=True):
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
        if not prefix:
            self._begun.add(node.id)
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


def _read_outcome(end: Promise[Step]) -> Step | BaseException:
    return end.error or end.outcome()


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


FIND_PLANS, KEEP_PLAN = "find_plans", "keep_plan"
"""Tools of a plan library (`plait.workers.tools.plan_library`), which the planner calls if the run has them."""
_EXAMPLES = 2
"""Maximum number of library plans in the prompt."""


class Workflow(Flow):
    """Plans with conditions and loops over many tools (WorkflowLLM, Fan et al., arXiv 2411.05451; repairs after
    ComfyGPT, arXiv 2503.17671; reviews by people after Opus, arXiv 2412.00573).

    `plan-1` writes a plan as JSON: calls, `if`, `foreach`, `while` with a limit, `review`. The planner checks the whole
    plan against the tools' schemas. All faults go back with candidates, and the model rewrites the faulty steps. A
    repair that does not reduce the number of faults is dropped, and repairs end. Then each step runs as soon as its
    inputs exist; calls with side effects keep their written order. With `replan=each` the model reads each result and
    may change what has not begun (Flash-Searcher, arXiv 2509.25301). If there are many tools, the model sees the
    nearest to the question and may request more. Plans that ran go into a library, if there is one.

    Differs from the originals: nothing is trained; plans are data, not code; every fault is reported at once.
    Defaults: 12 tools shown, 2 repairs, greedy.
    """

    fidelity = Fidelity("idea", paper="2411.05451")

    plan: Annotated[CallConfig, Uses("question", "tools", "more", "examples")] = Field(
        default=CallConfig(thinking="off", max_tokens=2048, temperature=0.0),
        description="Writes the plan, also after it has asked for `more` tools.",
    )
    repair: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off", max_tokens=2048, temperature=0.0),
        description="Rewrites the steps of a plan that have faults, and with `replan=each` those that change.",
    )
    answer: Annotated[CallConfig, Uses("results")] = Field(
        default=CallConfig(max_tokens=2048), description="Words the answer, of a plan that has none."
    )
    max_tools: MaxTools = SHOWN
    rounds: Rounds = Field(
        default=3,
        description="Maximum number of rounds. Each reads the results of the one before: in all but the last the model "
        "may ask for more tools in place of a plan.",
    )
    repairs: Repairs = 2
    observation_chars: ObservationChars = 8000
    replan: Literal["off", "each"] = Field(
        default="off",
        description="When the plan may change. `off`: never. `each`: after each result, 20 at most: the model may add "
        "steps, and drop or replace steps that have not begun.",
    )

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Plan, repair, run, answer. Raises `PlannerError` if the plan still has faults after repairs."""
        tools = {tool.name: tool for tool in ctx.brief.tools if tool.name not in (FIND_PLANS, KEEP_PLAN)}
        library = {tool.name for tool in ctx.brief.tools} - set(tools)
        writer = Writer(ctx, self, tools)
        examples = await self._examples(ctx, question) if FIND_PLANS in library else []
        plan, faults = await writer.plan(question, examples)
        plan, faults = await writer.repair(plan, faults)
        unused = frozenset(fault.node for fault in faults if fault.kind == "unused")
        if faults and len(faults) == len([fault for fault in faults if fault.kind == "unused"]):
            plan = drop_nodes(plan, unused)
            faults = find_faults(plan, tools)
        if faults:
            reasons = "; ".join(map(str, faults[:5]))
            rest = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
            raise PlannerError(f"the plan cannot run: {reasons}{rest}. Raise `repairs`, or take a larger model")
        runner = Runner(ctx, question, tools, plan)
        ended = await runner.run(writer if self.replan == "each" else None)
        plan = runner.plan
        failed = [error for error in ended.values() if isinstance(error, BaseException)]
        if KEEP_PLAN in library and not failed:
            await self._save_plan(ctx, question, plan)
        if plan.answer is not None:
            return await runner.answer(plan.answer)
        return writer.answer({name: _render_result(value) for name, value in ended.items()})

    async def _examples(self, ctx: Context, question: str) -> list[tuple[str, JsonValue]]:
        try:
            plans = await ctx.call(FIND_PLANS, intention=question, k=_EXAMPLES)
        except StepFailed:
            return []
        rows = plans if isinstance(plans, list) else []
        return [
            (as_text(row["intention"]), row["plan"])
            for row in rows
            if isinstance(row, dict) and "intention" in row and "plan" in row
        ]

    async def _save_plan(self, ctx: Context, question: str, plan: Plan) -> None:
        try:
            await ctx.call(KEEP_PLAN, intention=question, plan=abstract(plan))
        except StepFailed:
            return  # The answer does not depend on this step; the step reports the reason.


class Writer:
    """The conversation in which a model writes and repairs a plan."""

    def __init__(self, ctx: Context, options: Workflow, tools: Mapping[str, ToolSpec]) -> None:
        self._ctx, self._options, self._tools = ctx, options, tools
        self._line: Trajectory | None = None
        self._count = 0

    async def plan(self, question: str, examples: Sequence[tuple[str, JsonValue]]) -> tuple[Plan, list[WorkflowFault]]:
        """Return the plan that the model writes, with its faults."""
        told = list(self._tools.values())
        if self._options.max_tools is not None and len(told) > self._options.max_tools:
            told = await self._search_tools(question)
        hidden = len(self._tools) - len(told) if self._options.rounds > 1 else 0
        asked = prompts.plan_prompt(self._options.plan, question, told, hidden, examples)
        reply = await self._ask_for_json(asked, self._options.plan, "plan")
        for _ in range(self._options.rounds - 1):
            match reply:
                case {"more_tools": str() as query}:
                    new = await self._search_tools(query, [tool.name for tool in told])
                    told += new
                    reply = await self._ask_for_json(
                        prompts.found_tools_message(new), self._options.plan, "plan, with more tools"
                    )
                case _:
                    break
        plan = parse(reply)
        return plan, find_faults(plan, self._tools)

    async def repair(self, plan: Plan, faults: list[WorkflowFault]) -> tuple[Plan, list[WorkflowFault]]:
        """Return the plan after repairs, each with fewer faults than before."""
        for _ in range(self._options.repairs):
            if not faults:
                break
            unknown = [fault for fault in faults if fault.kind == "tool"]
            near = [await self._search_tools(fault.message, k=3) for fault in unknown[:5]]
            told = {tool.name: tool for some in near for tool in some}
            told |= {name: self._tools[name] for fault in faults for name in fault.candidates if name in self._tools}
            reply = await self._ask_for_json(
                prompts.repair_prompt(faults, plan, list(told.values())), self._options.repair, "repair"
            )
            better = apply_repair(plan, reply, {fault.node for fault in faults})
            left = find_faults(better, self._tools) if better is not None else faults
            if better is None or len(left) >= len(faults):
                break
            plan, faults = better, left
        return plan, faults

    async def change(
        self, results: Mapping[str, StepHandle[object] | BaseException], waiting: Sequence[str], reasons: str
    ) -> JsonValue:
        """Return the changes that the model makes to a running plan. `reasons`: why the last ones were not made."""
        texts = {name: _render_result(result) for name, result in results.items()}
        asked = prompts.change_prompt(texts, waiting, reasons, self._options.observation_chars)
        return await self._ask_for_json(asked, self._options.repair, "changes")

    def answer(self, results: Mapping[str, str]) -> Trajectory:
        """Return the model call that words the answer."""
        prompt = self._options.answer
        return self._ask(prompts.answer_prompt(prompt, results, self._options.observation_chars), prompt, "answer")

    async def _search_tools(self, query: str, without: Sequence[str] = (), k: int | None = None) -> list[ToolSpec]:
        """Return tools that match a description, or none if the search fails."""
        args = {
            "query": query,
            "k": k or self._options.max_tools or SHOWN,
            "without": [*without, FIND_PLANS, KEEP_PLAN],
        }
        try:
            return list(read_found_tools(await self._ctx.call(MORE_TOOLS, **args), self._tools.values()))
        except StepFailed:
            if self._line is None:
                raise  # without this search there are no tools to plan with
            return []

    async def _ask_for_json(self, text: str, prompt: CallConfig, label: str) -> JsonValue:
        line = await self._ask(text, prompt, label)
        return read_object(line.text)

    def _ask(self, text: str, prompt: CallConfig, label: str) -> Trajectory:
        self._count += 1
        before, chat = self._line, self._ctx.brief.task.chat()
        think = self._ctx.think if before is None else before.think
        self._line = think(
            text if before is None or chat else f"\n\n{text}\n",
            prompt,
            name=f"plan-{self._count}" if label != "answer" else "answer-1",
            label=label,
            chat=chat,
        )
        return self._line


def _render_result(ended: StepHandle[object] | BaseException) -> str:
    """Return a node's result as text for a model."""
    return f"failed: {ended}" if isinstance(ended, BaseException) else as_text(ended.value)
