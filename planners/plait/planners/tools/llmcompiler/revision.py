"""Change a plan while it runs: after each observation the model may add tasks, and drop or replace others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from plait.core.interfaces import PlanningContext
from plait.core.ops import Join, Plugin, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.planning import OnBranches
from plait.core.result import Result
from plait.core.tools.tool import ToolSpec
from plait.core.view import Branch

from . import prompts
from .options import LLMCompilerOptions, PlanState
from .parser import PlanTask
from .reader import PlanReader

_NUMBER: dict[str, JsonValue] = {"type": "object", "properties": {"task": {"type": "integer"}}, "required": ["task"]}
DROP = ToolSpec(name="drop", description="Leaves a task out of the plan.", parameters=_NUMBER)


class RevisionReader(PlanReader):
    """Reads changes of a running plan. New tasks start while they are written."""

    def __init__(self, planner: LLMCompilerOptions, brief: PlanningContext, state: PlanState) -> None:
        super().__init__(planner, brief, state)
        self._drops: list[str] = []

    def close(self, result: Result) -> Plan | None:
        """Return the remaining changes, and the join that waits for the next observation."""
        steps = [*self._take(self._rest(result.finish != "stop")), *self.held.values()]
        looks = self._looks()
        nothing = Join(merge=Plugin(name="constant", options={"value": ""}), on_failure="any-end")
        news = self._scratchpad(self.steps, looks) or Step(name="nothing", op=nothing)
        return Plan(steps=(*steps, *looks, news), output=news.name, drops=tuple(self._drops))

    def _step(self, task: PlanTask) -> Step | None:
        drops = task.tool.lower() == DROP.name
        step = None if drops else super()._step(task)
        for name in re.findall(r"\d+", task.arguments.raw) if drops else [str(task.id)] if step is not None else ():
            if name in self.state.open:
                left = tuple(other for other in self.state.open if other != name)
                self.state = self.state.model_copy(update={"open": left})
                self._drops.append(name)
        return step


def look_reader(planner: LLMCompilerOptions, brief: PlanningContext, state: PlanState) -> OnBranches:
    """Return the reader of an observation: the model may change what is left of the plan."""

    def read(result: Result, branches: Sequence[Branch]) -> Plan | None:
        plan = state.model_copy(update={"open": tuple(branch.name for branch in branches if not branch.state.ended)})
        seen = [task for task in plan.tasks if task["branch"] not in plan.open]
        waiting = "\n".join(str(task["text"]) for task in plan.tasks if task["branch"] in plan.open) or "none"
        scratchpad = planner.scratchpad_step(f"seen-{plan.count}", seen, [str(task["branch"]) for task in seen])
        head = prompts.plan_prompt(planner.plan, brief, planner.calls(brief)) + prompts.EARLIER
        end = prompts.REVISE.format(open=waiting, next=max(plan.numbers, default=0) + 1)
        pieces = (Text(text=head), Ref(step=scratchpad.name), Text(text=end))
        offered = replace(brief, tools=(*brief.tools, DROP))
        step = planner.plan_step(offered, plan, pieces, "changes")
        step = step.model_copy(update={"name": f"revise-{plan.count}", "role": "revise"})
        return Plan(steps=(scratchpad, step), output=step.name)

    return OnBranches(read)
