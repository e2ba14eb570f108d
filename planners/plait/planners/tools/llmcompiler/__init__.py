"""Planner `llmcompiler`: a model writes a plan of tool calls, which start while it is still writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.interfaces import PlanningContext, Reader
from plait.core.ops import Text, ToolCall
from plait.core.plan import Plan, Step
from plait.core.tools.schemas import MORE_TOOLS, tool_search_spec
from plait.core.tools.tool import ToolSpec

from ..._shared.steps import OnResult, through
from . import prompts
from .options import LLMCompilerOptions, PlanState
from .reader import PlanReader, answer_reader, done_reader
from .revision import DROP, RevisionReader, look_reader

__all__ = ["LLMCompiler"]

_TOOLS, _PLANNED = "tools", "planned"


class LLMCompiler(LLMCompilerOptions):
    """Function calls in parallel, after LLMCompiler (Kim et al., arXiv 2312.04511).

    Steps: `plan-1` writes the plan and expands into a call for each task, named by its number, as soon as the task's
    line is complete. `scratchpad-1` gathers the observations. `joiner-1` reads them and answers or requests another
    plan. `answer-1` is the answer, or expands into `plan-2`, and so on. Results keep their numbers in later plans. With
    `answer_from="last-task"` the joiner is skipped if all tasks succeeded.

    Differs from the original: a task starts as soon as its inputs exist; results are filled in once, as typed values,
    and never parsed as references; a failed task, or a task that needs one, is an observation; invalid lines go back to
    the model; a tool with side effects starts only when the whole plan is written. Defaults: temperature 0 and at most
    two plans (the original's `max_replans=1` allows one).
    """

    fidelity = Fidelity(
        "variant",
        "reads more ways of writing, a call with one list gets the list",
        oracles=("llmcompiler-plans",),
        paper="2312.04511",
    )

    def start(self, brief: PlanningContext) -> Plan:
        """Return the step that writes the first plan. Raises `PlannerError` if there are no tools to plan with."""
        if not brief.tools:
            raise PlannerError(
                "the planner `llmcompiler` has no tools to plan with: pass tools=[…], or --tools FILE.py with "
                "functions marked @tool"
            )
        own = {"join", DROP.name} if self.replan == "each" else {"join"}
        if taken := own.intersection(spec.name.lower() for spec in brief.tools):
            raise PlannerError(f"a tool is named {min(taken)!r}, as a word of plans: rename it with @tool(name=…)")
        if self.max_tools is None or len(brief.tools) <= self.max_tools:
            return self._plan_first(brief)
        search = ToolCall(tool=MORE_TOOLS, args={"query": {"$literal": brief.task.render()}, "k": self.max_tools})
        steps = (Step(name=_TOOLS, op=search, label="tools"), through(_PLANNED, _TOOLS, expands=True, role="tools"))
        return Plan(steps=steps, output=_PLANNED)

    def _plan_first(self, brief: PlanningContext) -> Plan:
        prompt = prompts.plan_prompt(self.plan, brief, self.calls(brief))
        names = tuple(spec.name for spec in brief.tools)
        state = PlanState(round=1, tools=names if MORE_TOOLS in names else None)
        step = self.plan_step(brief, state, (Text(text=f"{prompt}\n"),), "plan")
        return Plan(steps=(step,), output=step.name)

    def _narrow_tools(self, brief: PlanningContext, names: Sequence[JsonValue] | None) -> PlanningContext:
        """Return a brief with only the named tools and `more_tools`, or the unchanged brief for `None`."""
        if names is None or len(names) >= len(brief.tools):
            return brief
        chosen = [spec for spec in brief.tools if spec.name in names]
        return replace(brief, tools=(*chosen, tool_search_spec(len(brief.tools) - len(chosen))))

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of a plan while it is written, or of the joiner's decision."""
        if step.role == "tools":
            names = [spec.name for spec in brief.tools]
            return OnResult(lambda result: self._plan_first(self._narrow_tools(brief, _names(result.value, names))))
        if step.role not in ("plan", "revise", "look", "done", "answer"):
            return super().reader(step, brief)
        state = PlanState.model_validate(step.state)
        narrowed = self._narrow_tools(brief, state.tools)
        match step.role:
            case "done":
                return done_reader(self, narrowed, state)
            case "answer":
                return answer_reader(self, narrowed, state)
            case "look":
                return look_reader(self, narrowed, state)
            case "revise":
                reader = RevisionReader(self, narrowed, state)
            case _:
                reader = PlanReader(self, narrowed, state)
        reader.tools = {**reader.tools, **{spec.name: spec for spec in brief.tools}}
        return reader

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> dict[str, JsonValue]:
        """Return a written plan as JSON: `steps` (`name`, `tool`, `args`, `needs`), `repairs`, `errors`, `output`, and
        the same as a `plan`. Without `tools` any tool will do; with them, calls that do not fit are errors."""
        reader = PlanReader.of_text(self, tools)
        return reader.parsed(text)


def _names(value: JsonValue, known: Sequence[str]) -> list[JsonValue]:
    """Return the names of the tools in a value of `more_tools`."""
    rows = value if isinstance(value, list) else []
    return [row["name"] for row in rows if isinstance(row, dict) and row.get("name") in known]
