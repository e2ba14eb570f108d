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
from .options import LLMCompilerOptions
from .parser import PlanTask
from .progress import NOTHING, Progress
from .reader import PlanReader

DROP = ToolSpec(
    name="drop",
    description="Leaves a task out of the plan.",
    parameters={"type": "object", "properties": {"task": {"type": "integer"}}, "required": ["task"]},
)


def look_reader(planner: LLMCompilerOptions, brief: PlanningContext, state: JsonValue) -> OnBranches:
    """Return the reader of an observation: the model may change what is left of the plan."""

    def read(result: Result, branches: Sequence[Branch]) -> Plan | None:
        plan = Progress.model_validate(state)
        plan = plan.model_copy(update={"open": tuple(branch.name for branch in branches if not branch.state.ended)})
        if not plan.open:
            return None  # the joiner decides
        seen = tuple(task for task in plan.tasks if task["branch"] not in plan.open)
        waiting = "\n".join(str(task["text"]) for task in plan.tasks if task["branch"] in plan.open)
        options: dict[str, JsonValue] = {"actions": list(seen)}
        if planner.observation_chars is not None:
            options["observation_chars"] = planner.observation_chars
        op = Join(merge=Plugin(name="scratchpad", options=options), on_failure="any-end")
        scratchpad = Step(name=f"seen-{plan.count}", op=op, needs=tuple(str(task["branch"]) for task in seen))
        head = prompts.plan_prompt(planner.plan, brief, planner.calls(brief)) + prompts.EARLIER
        end = "\n" + prompts.REVISE.format(open=waiting, next=max(plan.numbers, default=0) + 1)
        pieces = (Text(text=head), Ref(step=scratchpad.name), Text(text=end))
        offered = replace(brief, tools=(*brief.tools, DROP))
        step = planner.plan_step(offered, plan.round, 0, pieces, "changes", plan.numbers)
        again = {"name": f"revise-{plan.count}", "role": "revise", "state": plan.model_dump(mode="json")}
        return Plan(steps=(scratchpad, step.model_copy(update=again)), output=f"revise-{plan.count}")

    return OnBranches(read)


class RevisionReader(PlanReader):
    """Reads changes of a running plan: new tasks start, and dropped ones are cancelled, while they are written."""

    def __init__(self, planner: LLMCompilerOptions, brief: PlanningContext, step: Step) -> None:
        self._plan = Progress.model_validate(step.state)
        super().__init__(planner, brief, self._plan.round, planner.repairs, step.op, self._plan.numbers)
        self._earlier = None
        self._open = list(self._plan.open)
        self._drops: list[str] = []

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return patches with the new tasks and the dropped ones."""
        patches = super().feed(delta)
        drops, self._drops = tuple(self._drops), []
        return [*patches, Plan(steps=(), drops=drops)] if drops else patches

    def close(self, result: Result) -> Plan | None:
        """Return the remaining changes, and the join that waits for the next observation."""
        steps = [*self._take(self._rest(result.finish != "stop")), *self.held.values()]
        names = [step.name for step in self.steps]
        tasks = (*self._plan.tasks, *(entry for entry in self._entries if entry.get("branch")))
        changed = {"count": self._plan.count + 1, "open": (*self._open, *names), "tasks": tasks}
        looks = self._plan.model_copy(update=changed).look()
        news = self._scratchpad(self.steps, looks) or Step(name="nothing", op=NOTHING)
        return Plan(steps=(*steps, *looks, news), output=news.name, drops=tuple(self._drops))

    def _step(self, task: PlanTask) -> Step | None:
        if task.tool.lower() == DROP.name:
            for number in re.findall(r"\d+", task.arguments.raw):
                self._drop(number)
            return None
        step = super()._step(task)
        if step is not None:
            self._drop(str(task.id))
        return step

    def _drop(self, name: str) -> None:
        if name in self._open:
            self._open.remove(name)
            self._drops.append(name)
