"""Read plans while they are written, and the joiner's decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from plait.core.interfaces import PlanningContext
from plait.core.messages import did_you_mean
from plait.core.ops import Join, ToolCall
from plait.core.plan import Plan, Step
from plait.core.planning import OnBranches, OnResult
from plait.core.result import Result
from plait.core.tools.calls import canonical_text
from plait.core.tools.tool import ToolSpec
from plait.core.view import Branch

from ..._shared.steps import shorten, through
from .binding import bind
from .options import LLMCompilerOptions, PlanState
from .parser import PlanTask, PlanText
from .tool_calls import NativeCalls

_NOT_RUN = "the plan that it stood in was sent back"
UNREAD = "this line cannot be read as a task: write it as `1. tool(arguments)`, one task a line"


class PlanReader:
    """Turns every complete task of a plan into a patch at once, and adds the round's end when the plan is complete."""

    def __init__(self, planner: LLMCompilerOptions, brief: PlanningContext | None, state: PlanState) -> None:
        self.planner, self.brief, self.state = planner, brief, state
        self.text = PlanText()
        self.tools: Mapping[str, ToolSpec] = {spec.name: spec for spec in brief.tools} if brief else {}
        self.errors: list[str] = []
        self.repairs: list[str] = []
        self.join: int | None = None
        self.steps: list[Step] = []
        """All steps so far, including steps that are held back."""
        self.held: dict[str, Step] = {}
        """Calls with side effects, and the steps that need them: they wait until the whole plan is written."""
        self._entries: list[dict[str, JsonValue]] = []
        self._known = {number: str(number) for number in state.numbers}
        self._taken = set(self._known.values())
        self._before = frozenset(state.numbers)
        self._last = max(state.numbers, default=0)
        self._native = NativeCalls(self._last)
        self._said: set[tuple[int, str]] = set()
        self._made: dict[str, str] = {}
        """Names of the calls without side effects, by their content: an equal call is not made again."""
        self._full = False
        """Whether an error reports that the plan has too many tasks."""

    @classmethod
    def of_text(cls, planner: LLMCompilerOptions, tools: Sequence[ToolSpec]) -> PlanReader:
        """Return a reader of a plan that is not run."""
        reader = cls(planner, None, PlanState(round=1))
        reader.tools = {spec.name: spec for spec in tools}
        return reader

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return a patch with the calls of the tasks that are complete now and may start."""
        steps = self._take(self.text.feed(self._native.feed(delta)))
        self._note_unreadable_calls()
        return (Plan(steps=tuple(steps)),) if steps else ()

    def close(self, result: Result) -> Plan | None:
        """Return the remaining calls and the joiner, or the repair of invalid tasks."""
        brief = self.brief
        assert brief is not None
        cut = result.finish != "stop"
        steps = self._take(self._rest(cut))
        # A plan is complete after join(), even if the model adds more text.
        if cut and self.join is None:
            self.errors.append("the plan was cut off before its join()")
        if not self._entries and self.join is None and not cut:
            self.errors.append("no task was found: write each on a line of its own, as `1. tool(arguments)`")
        if self.errors and self.state.repair < self.planner.repairs:
            return self._plan_repair(steps, brief)
        # The plan is complete and valid: calls with side effects may start now.
        steps += self.held.values()
        branches = self.steps
        looks = self._looks() if self.planner.replan == "each" else []
        scratchpad = self._scratchpad(branches, looks)
        steps += [*looks, *([scratchpad] if scratchpad else [])]
        state = self._next_state(branches, scratchpad)
        if self.planner.answer_from == "last-task" and branches and scratchpad and not self.errors:
            steps.append(self.planner.unless_done(state, scratchpad.name, [step.name for step in branches]))
        else:
            steps += self.planner.conclusion(brief, state, self.errors)
        return Plan(steps=tuple(steps), output=steps[-1].name)

    def parsed(self, text: str) -> dict[str, JsonValue]:
        """Return a whole plan as JSON."""
        self._take([*self.text.feed(self._native.feed(text)), *self._rest(False)])
        names = tuple(step.name for step in self.steps)
        last = max(self._known, default=0) + 1 if self.join is None or self.join < 0 else self.join
        if self.join is None:
            self.text.repairs.append("join was missing")
        shown: list[JsonValue] = []
        for step in self.steps:
            assert isinstance(step.op, ToolCall)
            shown.append({"name": step.name, "tool": step.op.tool, "args": step.op.args, "needs": list(step.needs)})
        end = str(last) if str(last) not in names else "join"
        shown.append({"name": end, "tool": "join", "args": {}, "needs": list(names)})
        plan = None
        if names:
            join = Step(name=end, op=Join(on_failure=self.planner.on_failure), needs=names)
            plan = Plan(steps=(*self.steps, join), output=end).model_dump(mode="json", exclude_none=True)
        repairs: list[JsonValue] = [*self.text.repairs, *self.repairs]
        return {"steps": shown, "output": end, "repairs": repairs, "errors": list(self.errors), "plan": plan}

    def _rest(self, cut: bool) -> list[PlanTask]:
        """Return the tasks that are complete because the text ends."""
        tasks = [*self.text.feed(self._native.close()), *self.text.close(cut)]
        self._note_unreadable_calls()
        if self._native.count:
            self.text.repairs.append(f"{_format_count(self._native.count, 'native tool call')} read as tasks")
        return tasks

    def _note_unreadable_calls(self) -> None:
        """Record unreadable calls as tasks that are not run."""
        for number, text, why in self._native.misread:
            self._entries.append({"text": f"{number}. {text}", "thought": "", "error": why})
            self.errors.append(f"{number}. {text}: {why}")
            self._known.setdefault(number, "")
        self._native.misread.clear()

    def _take(self, tasks: Sequence[PlanTask]) -> list[Step]:
        """Return the steps of tasks that may start now; hold the others back."""
        started: list[Step] = []
        for task in tasks:
            if task.is_join:
                self.join = task.id
                continue
            if task.is_unread:
                self._entries.append({"text": task.arguments.raw, "thought": "", "error": UNREAD})
                self.errors.append(f"{task.arguments.raw}: {UNREAD}")
                continue
            step = self._step(task)
            if step is None:
                continue
            self.steps.append(step)
            # A plan that is sent back for repair must not have changed anything yet.
            if step.side_effects or (self.held and any(name in self.held for name in step.references())):
                self.held[step.name] = step
            else:
                started.append(step)
        return started

    def _step(self, task: PlanTask) -> Step | None:
        """Return a task's call, or `None` if the task must not run."""
        # Models in a loop write whole plans twice.
        written = (task.id, task.text)
        if written in self._said:
            self.repairs.append(f"task {task.id}: written twice, run once")
            return None
        if len(self._entries) >= self.planner.max_branches:
            if not self._full:  # reported once for all excess tasks
                self._full = True
                self.repairs.append(f"more tasks than {self.planner.max_branches}: the others are not run")
            return None
        self._said.add(written)
        name = self._name(task.id)
        spec = self._tool(task.tool)
        entry: dict[str, JsonValue] = {"text": f"{name}. {task.text}", "thought": task.thought}
        self._entries.append(entry)
        bound = bind(task, self._known, spec, self.text.names)
        errors = bound.errors
        if spec is None and self.tools:
            names = [spec.name for spec in self.brief.tools] if self.brief else list(self.tools)
            there = ", ".join(names)
            errors = [f"there is no tool {task.tool!r}{did_you_mean(task.tool, self.tools)} (there are: {there})"]
        errors += [f"it needs task {number}, which is not run" for number in dict.fromkeys(bound.blocked)]
        once = not errors and spec is not None and not spec.side_effects
        made = f"{spec.name} {canonical_text(bound.args, spec.parameters)}" if once and spec is not None else ""
        if made in self._made:
            self._entries.pop()
            self._known[task.id] = self._made[made]
            self.repairs.append(f"task {task.id}: the same call as task {self._made[made]}, made once")
            return None
        if made:
            self._made[made] = name
        if errors:
            entry["error"] = "; ".join(errors)
            self.errors.append(f"{name}. {task.text}: {entry['error']}")
            self._known[task.id] = ""
            return None
        self.repairs += [f"task {task.id}: {repair}" for repair in bound.repairs]
        entry["branch"] = self._known[task.id] = name
        self._taken.add(name)
        # Not validated again: the arguments were built from JSON just now, and this runs while the model writes.
        op = ToolCall.model_construct(tool=spec.name if spec else task.tool, args=bound.args)
        effects = spec.side_effects if spec else False
        return Step(name=name, op=op, needs=tuple(bound.needs), side_effects=effects, label=shorten(task.text))

    def _name(self, number: int) -> str:
        """Return a task's name: its number, or the next free number if an earlier plan's task has it. A second task
        with the same number in a plan is named `2-2`; later references mean this task."""
        if number in self._before or (self._before and str(number) in self._taken and number not in self._known):
            self._last += 1
            while str(self._last) in self._taken:
                self._last += 1
            self.repairs.append(f"task {number}: an earlier plan has this number, so it is {self._last}")
            return str(self._last)
        name, again = str(number), 1
        while name in self._taken:
            again += 1
            name = f"{number}-{again}"
        if again > 1:
            self.repairs.append(f"task {number}: a second task has this number; later references mean {name}")
        return name

    def _tool(self, name: str) -> ToolSpec | None:
        """Return a tool by its name, ignoring case and hyphens."""
        spec = self.tools.get(name)
        if spec is not None or not self.tools:
            return spec
        alike = [spec for spec in self.tools.values() if _normalise_name(spec.name) == _normalise_name(name)]
        if len(alike) != 1:
            return None
        self.repairs.append(f"tool {name!r} taken as {alike[0].name!r}")
        return alike[0]

    def _plan_repair(self, steps: list[Step], brief: PlanningContext) -> Plan:
        """Return the calls that may start despite errors, and the step that repairs the other calls."""
        for entry in self._entries:
            if entry.get("branch") in self.held:
                entry["branch"], entry["error"] = None, _NOT_RUN
        branches = [step for step in self.steps if step.name not in self.held]
        scratchpad = self._scratchpad(branches)
        state = self._next_state(branches, scratchpad).model_copy(update={"repair": self.state.repair + 1})
        plan = self.planner.plan_again(brief, state, errors=self.errors)
        return Plan(steps=(*steps, *([scratchpad] if scratchpad else []), *plan.steps), output=plan.output)

    def _next_state(self, branches: Sequence[Step], scratchpad: Step | None) -> PlanState:
        """Return the state of what follows the plan, with the task numbers that later plans can refer to."""
        numbers = sorted(self._before | {int(step.name) for step in branches if step.name.isdecimal()})
        return self.state.model_copy(
            update={"numbers": tuple(numbers), "scratchpad": scratchpad.name if scratchpad else None}
        )

    def _looks(self) -> list[Step]:
        """Return the join that waits for the next observation, after which the plan may change."""
        plan = self._next_state(self.steps, None)
        tasks = (*plan.tasks, *(entry for entry in self._entries if entry.get("branch")))
        state = {"open": (*plan.open, *(step.name for step in self.steps)), "tasks": tasks, "count": plan.count + 1}
        return plan.model_copy(update=state).look()

    def _scratchpad(self, branches: Sequence[Step], looks: Sequence[Step] = ()) -> Step | None:
        """Return the join of all observations, including those of earlier plans and of the plan's changes (`looks`), or
        `None` without observations."""
        needs = (
            *([self.state.scratchpad] if self.state.scratchpad else []),
            *(step.name for step in (*branches, *looks)),
        )
        if not needs:
            return None
        later: list[JsonValue] = [{"text": "", "branch": look.name} for look in looks]
        label = f"{len(branches)} tasks"
        repairs = [*self.text.repairs, *self.repairs]
        if repairs:
            label += f"; {_format_count(len(repairs), 'repair')}: {shorten('; '.join(repairs), 160)}"
        suffix = f"-repair-{self.state.repair}" if self.state.repair else ""
        name, actions = f"scratchpad-{self.state.round}{suffix}", [*self._entries, *later]
        return self.planner.scratchpad_step(name, actions, needs, label, self.state.scratchpad)


def done_reader(planner: LLMCompilerOptions, brief: PlanningContext, state: PlanState) -> OnBranches:
    """Return the reader of the join that checks whether all tasks succeeded."""

    def read(result: Result, branches: Sequence[Branch]) -> Plan | None:
        tasks = [branch for branch in branches if branch.name != state.scratchpad]
        if tasks and all(branch.done for branch in tasks):
            answer = through(f"answer-{state.round}", tasks[-1].name, "the last task's result")
            return Plan(steps=(answer,), output=answer.name)
        steps = planner.conclusion(brief, state)
        return Plan(steps=steps, output=steps[-1].name)

    return OnBranches(read)


def answer_reader(planner: LLMCompilerOptions, brief: PlanningContext, state: PlanState) -> OnResult:
    """Return the reader of the joiner's decision: the answer stands, or another plan is written."""

    def read(result: Result) -> Plan | None:
        match result.value:
            case {"replan": str(missing), "thought": str(thought)}:
                words = " ".join(part for part in (thought, missing) if part)
                again = state.model_copy(update={"round": state.round + 1, "repair": 0})
                return planner.plan_again(brief, again, words)
            case _:
                return None

    return OnResult(read)


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def _normalise_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")
