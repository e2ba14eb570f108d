"""Planner `workflow`: a plan with conditions, loops and questions to people, checked completely before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow
from plait.core.step_handles import StepFailed, StepHandle, Trajectory
from plait.core.tools.schemas import MORE_TOOLS, SHOWN, read_found_tools
from plait.core.tools.tool import ToolSpec
from plait.core.values import as_text
from plait.core.vocabulary import MaxTools, ObservationChars, Repairs, Rounds

from ..._shared.json_text import read_object
from . import prompts
from .plan import WorkflowFault, WorkflowPlan as Plan, abstract, apply_repair, drop_nodes, parse
from .runner import Runner
from .validation import find_faults

__all__ = ["FIND_PLANS", "KEEP_PLAN", "Workflow"]

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
    inputs exist; calls with side effects keep their written order. If there are many tools, the model sees the nearest
    to the question and may request more. Plans that ran go into a library, if there is one.

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
        description="Rewrites the steps of a plan that have faults.",
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
        runner = Runner(ctx, question, tools)
        ended = await runner.run(plan)
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
            better = apply_repair(plan, reply, faults)
            left = find_faults(better, self._tools) if better is not None else faults
            if better is None or len(left) >= len(faults):
                break
            plan, faults = better, left
        return plan, faults

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
