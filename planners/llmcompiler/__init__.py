"""Planner `llmcompiler`: a model writes a plan of tool calls, which start while it is still writing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.errors import PlannerError, PluginError
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.messages import did_you_mean
from plait.core.plan import Call, Function, Join, Plan, Plugin, Ref, Sampling, Step, Structured, Text, Think
from plait.core.result import Result
from plait.core.tools.more import MORE_TOOLS, more_tools
from plait.core.tools.tool import ToolSpec

from .._shared.seeds import derive
from .._shared.steps import OnResult, through
from . import prompts
from .binding import bind
from .parser import PlanText, Task
from .tool_calls import NativeCalls

__all__ = ["LLMCompiler"]

_NAME = re.compile(r"plan-([0-9]{1,6})(?:-repair-([0-9]{1,6}))?")
_NUMBERS = "Results that can be referred to: "
_NOT_RUN = "the plan that it stood in was sent back"
_TOOLS, _PLANNED = "tools", "planned"
_UNREAD = "this line cannot be read as a task: write it as `1. tool(arguments)`, one task a line"


class LLMCompiler(Planner):
    """Function calls in parallel, after LLMCompiler (Kim et al., arXiv 2312.04511).

    Steps: `plan-1` writes the plan and expands into a call for each task, named by its number, as soon as the task's
    line is complete; `scratchpad-1` gathers what they observed; `joiner-1` reads that and answers or asks for another
    plan; `answer-1` is the answer, or expands into `plan-2`, and so on. Results keep their numbers in later plans.

    Differs from the original: a task starts the moment its inputs are there; results are put in once, as typed values,
    and never read as references; a task that fails, or needs one that did, is an observation; lines that cannot be run
    are sent back to the model; a tool that changes the world starts only when the whole plan is written. Temperature 0
    and one more plan at most by default (the original's `max_replans=1` allows none).
    """

    instructions: str | None = None
    """Instructions for the planner in place of the built-in ones, such as the authors' own; `{tools}` stands for the
    numbered list of tools, `{join}` for the number of the join. Question, examples and earlier plans follow them."""
    examples: str = ""
    """Examples for the planner: questions with plans, no observations. Put into the prompt as they are."""
    joiner_examples: str = ""
    """Examples for the joiner: observations with a thought and an action."""
    shown: int | None = Field(default=None, ge=1)
    """How many tools the model is told of: those nearest to the question. It finds others by a task `more_tools`, for
    another plan. By default all."""
    max_replans: int = Field(default=1, ge=0)
    """Most plans after the first."""
    max_repairs: int = Field(default=1, ge=0)
    """How often lines of one plan that cannot be run are sent back to the model; after that they are observations."""
    max_tasks: int = Field(default=10_000, ge=1)
    """Most tasks of one plan; those beyond are not run."""
    plan_tokens: int = Field(default=1024, ge=1)
    """Most tokens of a plan."""
    joiner_tokens: int = Field(default=512, ge=1)
    """Most tokens of the joiner's thought and action."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Of planner and joiner; 0 is greedy."""
    observation_chars: int | None = Field(default=None, ge=1)
    """Most characters of one observation that the joiner reads. Tasks always get the whole value."""
    tolerate: Literal["all", "any-end"] = "any-end"
    """`any-end`: what a task failed with is read by the joiner. `all`: the first failure ends the run."""
    constrained: bool = False
    """Have the engine allow nothing but a plan that calls the tools there are (structured output by an expression):
    for models that stray. What stands between a call's brackets stays free, and is repaired as ever."""
    native: bool = False
    """Offer the tools to the model as functions that it calls by itself (OpenAI's `tools`), all in one turn: for models
    trained to call functions that way, on a chat server or an engine whose chat template knows them. The first call is
    task 1; `"$1"` as an argument stands for its result. A server that takes no functions is asked for a plan in words
    alone, and says so in the log. Not together with `constrained`."""
    stream: bool = False
    """Send the joiner's text while it is being written; the plan's always is."""

    @model_validator(mode="after")
    def _one_language(self) -> LLMCompiler:
        if self.native and self.constrained:
            raise PluginError("`native` calls and a `constrained` plan are two languages: give one of them")
        return self

    def start(self, brief: Brief) -> Plan:
        """Return the step that writes the first plan. Raises `PlannerError` if there are no tools to plan with."""
        if not brief.tools:
            raise PlannerError(
                "the planner `llmcompiler` has no tools to plan with: pass tools=[…], or --tools FILE.py with "
                "functions marked @tool"
            )
        if any(spec.name.lower() == "join" for spec in brief.tools):
            raise PlannerError("a tool is named 'join', which ends plans: give it another name with @tool(name=…)")
        if self.shown is None or len(brief.tools) <= self.shown:
            return self._first(brief)
        search = Call(tool=MORE_TOOLS, args={"query": {"$literal": brief.task.render()}, "k": self.shown})
        steps = (Step(name=_TOOLS, op=search, label="tools"), through(_PLANNED, _TOOLS, expands=True))
        return Plan(steps=steps, output=_PLANNED)

    def _first(self, brief: Brief) -> Plan:
        prompt = prompts.plan(
            brief.tools, brief.task.render(), self.examples, native=self._calls(brief), rules=self.instructions
        )
        step = self._plan_step(brief, "plan-1", (Text(text=prompt + "\n"),), "plan")
        return Plan(steps=(step,), output=step.name)

    def _narrowed(self, brief: Brief, told: JsonValue) -> Brief:
        """Return a brief with the tools of these names alone, and `more_tools`; the same for `None`."""
        if not isinstance(told, list) or len(told) >= len(brief.tools):
            return brief
        chosen = [spec for spec in brief.tools if spec.name in told]
        return replace(brief, tools=(*chosen, more_tools(len(brief.tools) - len(chosen))))

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader of a plan while it is written, or of the joiner's decision."""
        if isinstance(step.op, Join) and step.name == _PLANNED:
            found = [spec.name for spec in brief.tools]
            return OnResult(lambda result: self._first(self._narrowed(brief, _names(result.value, found))))
        if isinstance(step.op, Join) and step.name.startswith("answer-"):
            state = step.op.merge.options.get("state")
            told = state.get("told") if isinstance(state, dict) else None
            return _AnswerReader(self, state, self._narrowed(brief, told))
        found = _NAME.fullmatch(step.name)
        if found is None or not isinstance(step.op, Think):
            return super().reader(step, brief)
        reader = PlanReader(self, self._narrowed(brief, step.state), int(found[1]), int(found[2] or 0), step.op)
        reader.tools = {**reader.tools, **{spec.name: spec for spec in brief.tools}}
        return reader

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> dict[str, JsonValue]:
        """Return a written plan as JSON: `steps` (`name`, `tool`, `args`, `needs`), `repairs`, `errors`, `output`, and
        the same as a `plan`. Without `tools` any tool will do; with them, calls that do not fit are errors."""
        reader = PlanReader.of_text(self, tools)
        return reader.parsed(text)

    def _plan_step(self, brief: Brief, name: str, prompt: tuple[Text | Ref, ...], label: str) -> Step:
        sampling = self._sampling(brief, name, self.plan_tokens, prompts.STOP_PLAN)
        if self.constrained:
            form = Structured(kind="regex", spec=prompts.expression(brief.tools))
            sampling = sampling.model_copy(update={"structured": form})
        tools = (
            [Function(name=spec.name, description=spec.description, parameters=spec.parameters) for spec in brief.tools]
            if self._calls(brief)
            else ()
        )
        op = Think(prompt=prompt, chat=brief.task.chat(), sampling=sampling, stream=True, tools=tools)
        return Step(name=name, op=op, expands=True, label=label, state=_told(brief))

    def _calls(self, brief: Brief) -> bool:
        """Whether the model is offered functions: a prompt that is plain text has no place for them."""
        return self.native and brief.task.chat()

    def _sampling(self, brief: Brief, name: str, tokens: int, stop: tuple[str, ...]) -> Sampling:
        seed = derive(brief.request.seed, "llmcompiler", name) if self.temperature else None
        return Sampling(max_tokens=tokens, temperature=self.temperature, seed=seed, stop=stop)

    def plan_again(
        self,
        brief: Brief,
        name: str,
        numbers: Sequence[int],
        scratchpad: str | None,
        thought: str,
        errors: Sequence[str] = (),
    ) -> Plan:
        """Return the step that writes another plan, or more of one. Its last part but one says which results there
        are: its reader reads that as the model does."""
        after = max(numbers, default=0) + 1
        native = self._calls(brief)
        question, own = brief.task.render(), self.instructions
        head = prompts.plan(brief.tools, question, self.examples, after, replan=True, native=native, rules=own)
        parts: list[Text | Ref] = [Text(text=f"{head}\nPrevious Plan:\n\n")]
        parts.append(Ref(step=scratchpad) if scratchpad else Text(text="(no task was run)\n"))
        parts.append(Text(text=prompts.replan_end(thought, errors)))
        listed = ", ".join(f"${number}" for number in numbers) or "none"
        parts += [Text(text=f"\n{_NUMBERS}{listed}\n"), Text(text="\nCurrent Plan:\n\n")]
        step = self._plan_step(brief, name, tuple(parts), "repair" if errors else "another plan")
        return Plan(steps=(step,), output=step.name)

    def conclusion(
        self, brief: Brief, round: int, numbers: Sequence[int], scratchpad: str | None, errors: Sequence[str]
    ) -> tuple[Step, Step]:
        """Return the joiner and the answer that is made of what it says."""
        again = round <= self.max_replans
        head = prompts.joiner(brief.task.render(), self.joiner_examples, again)
        nothing = "(no tool was called)\n" + "".join(f"Not run: {error}\n" for error in errors)
        observed = Ref(step=scratchpad) if scratchpad else Text(text=nothing)
        prompt = (Text(text=head), observed, Text(text=prompts.joiner_end()))
        sampling = self._sampling(brief, f"joiner-{round}", self.joiner_tokens, prompts.STOP_JOINER)
        op = Think(prompt=prompt, chat=brief.task.chat(), sampling=sampling, stream=self.stream)
        joiner = Step(name=f"joiner-{round}", op=op, label="joiner")
        state: dict[str, JsonValue] = {"round": round, "numbers": list(numbers), "scratchpad": scratchpad}
        told = _told(brief)
        state |= {} if told is None else {"told": told}
        options: dict[str, JsonValue] = {"replan": True, "state": state} if again else {}
        merge = Join(merge=Plugin(name="finish", options=options))
        answer = Step(name=f"answer-{round}", op=merge, needs=(joiner.name,), expands=again, label="answer")
        return joiner, answer


class PlanReader:
    """Makes a patch of every task of a plan the moment it is complete, and the end of the round when the plan is."""

    def __init__(self, planner: LLMCompiler, brief: Brief | None, round: int, repair: int, op: Think | None) -> None:
        self.planner, self.brief, self.round, self.repair = planner, brief, round, repair
        self.text = PlanText()
        self.tools: Mapping[str, ToolSpec] = {spec.name: spec for spec in brief.tools} if brief else {}
        self.errors: list[str] = []
        self.repairs: list[str] = []
        self.join: int | None = None
        self.steps: list[Step] = []
        """All steps so far, those held back included."""
        self.held: dict[str, Step] = {}
        """Calls that change the world, and what needs them: they wait until the whole plan is written."""
        self._entries: list[dict[str, JsonValue]] = []
        self._earlier: str | None = None
        """The scratchpad before this plan."""
        numbers = _numbers(op)
        if op is not None:
            self._earlier = next((part.step for part in op.prompt if isinstance(part, Ref)), None)
        self._known = {number: str(number) for number in numbers}
        self._taken = set(self._known.values())
        self._before = frozenset(numbers)
        self._last = max(numbers, default=0)
        self._native = NativeCalls(self._last)
        self._said: set[tuple[int, str]] = set()

    @classmethod
    def of_text(cls, planner: LLMCompiler, tools: Sequence[ToolSpec]) -> PlanReader:
        """Return a reader of a plan that is not going to be run."""
        reader = cls(planner, None, 1, 0, None)
        reader.tools = {spec.name: spec for spec in tools}
        return reader

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return a patch with the calls of the tasks that are complete now and may start."""
        steps = self._take(self.text.feed(self._native.feed(delta)))
        self._misread()
        return (Plan(steps=tuple(steps)),) if steps else ()

    def close(self, result: Result) -> Plan | None:
        """Return the calls that are left, and the joiner; or the repair of what cannot be run."""
        brief = self.brief
        assert brief is not None
        cut = result.finish != "stop"
        steps = self._take(self._rest(cut))
        if cut and self.join is None:
            self.errors.append("the plan was cut off before its join()")
        if not self._entries and self.join is None and not cut:
            self.errors.append("no task was found: write each on a line of its own, as `1. tool(arguments)`")
        if self.errors and self.repair < self.planner.max_repairs:
            return self._sent_back(steps, brief)
        steps += self.held.values()
        branches = self.steps
        scratchpad = self._scratchpad(branches)
        steps += [scratchpad] if scratchpad else []
        name = scratchpad.name if scratchpad else None
        steps += self.planner.conclusion(brief, self.round, self._results(branches), name, self.errors)
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
            assert isinstance(step.op, Call)
            shown.append({"name": step.name, "tool": step.op.tool, "args": step.op.args, "needs": list(step.needs)})
        end = str(last) if str(last) not in names else "join"
        shown.append({"name": end, "tool": "join", "args": {}, "needs": list(names)})
        plan = None
        if names:
            join = Step(name=end, op=Join(tolerate=self.planner.tolerate), needs=names)
            plan = Plan(steps=(*self.steps, join), output=end).model_dump(mode="json", exclude_none=True)
        repairs: list[JsonValue] = [*self.text.repairs, *self.repairs]
        return {"steps": shown, "output": end, "repairs": repairs, "errors": list(self.errors), "plan": plan}

    def _rest(self, cut: bool) -> list[Task]:
        """Return the tasks that the end of the text completes."""
        tasks = [*self.text.feed(self._native.close()), *self.text.close(cut)]
        self._misread()
        if self._native.count:
            self.text.repairs.append(f"{_counted(self._native.count, 'native tool call')} read as tasks")
        return tasks

    def _misread(self) -> None:
        """Note calls that cannot be read as tasks that are not run."""
        for number, text, why in self._native.misread:
            self._entries.append({"text": f"{number}. {text}", "thought": "", "error": why})
            self.errors.append(f"{number}. {text}: {why}")
            self._known.setdefault(number, "")
        self._native.misread.clear()

    def _take(self, tasks: Sequence[Task]) -> list[Step]:
        """Return the steps of tasks that may start now; keep the others."""
        started: list[Step] = []
        for task in tasks:
            if task.is_join:
                self.join = task.id
                continue
            if task.is_unread:
                self._entries.append({"text": task.arguments.raw, "thought": "", "error": _UNREAD})
                self.errors.append(f"{task.arguments.raw}: {_UNREAD}")
                continue
            step = self._step(task)
            if step is None:
                continue
            self.steps.append(step)
            if step.side_effects or (self.held and any(name in self.held for name in step.references())):
                self.held[step.name] = step
            else:
                started.append(step)
        return started

    def _step(self, task: Task) -> Step | None:
        """Return a task's call, or `None` if it is not to be run."""
        said = (task.id, task.text)
        if said in self._said:
            self.repairs.append(f"task {task.id}: written twice, run once")
            return None
        if len(self._entries) >= self.planner.max_tasks:
            if len(self._entries) == self.planner.max_tasks and "more tasks" not in "".join(self.repairs[-1:]):
                self.repairs.append(f"more tasks than {self.planner.max_tasks}: the others are not run")
            return None
        self._said.add(said)
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
        if errors:
            entry["error"] = "; ".join(errors)
            self.errors.append(f"{name}. {task.text}: {entry['error']}")
            self._known[task.id] = ""
            return None
        self.repairs += [f"task {task.id}: {repair}" for repair in bound.repairs]
        entry["branch"] = self._known[task.id] = name
        self._taken.add(name)
        # Not validated again: the arguments were built from JSON just now, and this runs while the model writes.
        op = Call.model_construct(tool=spec.name if spec else task.tool, args=bound.args)
        effects = spec.side_effects if spec else False
        return Step(name=name, op=op, needs=tuple(bound.needs), side_effects=effects, label=_shortened(task.text))

    def _name(self, number: int) -> str:
        """Return a task's name: its number, or the next free one if an earlier plan's task has that. A second task of
        the same number in one plan is numbered `2-2`, and later references mean it."""
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
        """Return a tool by its name, however it is cased and hyphenated."""
        found = self.tools.get(name)
        if found is not None or not self.tools:
            return found
        alike = [spec for spec in self.tools.values() if _plain(spec.name) == _plain(name)]
        if len(alike) != 1:
            return None
        self.repairs.append(f"tool {name!r} taken as {alike[0].name!r}")
        return alike[0]

    def _sent_back(self, steps: list[Step], brief: Brief) -> Plan:
        """Return the calls that may start all the same, and the step that is to repair the others."""
        for entry in self._entries:
            if entry.get("branch") in self.held:
                entry["branch"], entry["error"] = None, _NOT_RUN
        branches = [step for step in self.steps if step.name not in self.held]
        scratchpad = self._scratchpad(branches)
        name = f"plan-{self.round}-repair-{self.repair + 1}"
        at = scratchpad.name if scratchpad else None
        plan = self.planner.plan_again(brief, name, self._results(branches), at, "", self.errors)
        return Plan(steps=(*steps, *([scratchpad] if scratchpad else []), *plan.steps), output=plan.output)

    def _results(self, branches: Sequence[Step]) -> list[int]:
        """Return the numbers of the tasks that later plans can refer to."""
        return sorted(self._before | {int(step.name) for step in branches if step.name.isdecimal()})

    def _scratchpad(self, branches: Sequence[Step]) -> Step | None:
        """Return the join of what tasks observed, earlier plans' included; `None` if there is nothing to join."""
        needs = (*([self._earlier] if self._earlier else []), *(step.name for step in branches))
        if not needs:
            return None
        options: dict[str, JsonValue] = {"entries": list(self._entries), "earlier": self._earlier}
        if self.planner.observation_chars is not None:
            options["limit"] = self.planner.observation_chars
        merge = Plugin(name="scratchpad", options=options)
        op = Join(merge=merge, tolerate=self.planner.tolerate)
        label = f"{len(branches)} tasks"
        repairs = [*self.text.repairs, *self.repairs]
        if repairs:
            label += f"; {_counted(len(repairs), 'repair')}: {_shortened('; '.join(repairs), 160)}"
        suffix = f"-repair-{self.repair}" if self.repair else ""
        return Step(name=f"scratchpad-{self.round}{suffix}", op=op, needs=needs, label=label)


class _AnswerReader:
    """Reads the joiner's decision: the answer stands, or another plan is written."""

    def __init__(self, planner: LLMCompiler, state: JsonValue, brief: Brief) -> None:
        self.planner, self.state, self.brief = planner, state, brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        match result.value, self.state:
            case {"replan": str(missing), "thought": str(thought)}, {
                "round": int(round),
                "numbers": list(numbers),
                "scratchpad": scratchpad,
            }:
                said = " ".join(each for each in (thought, missing) if each)
                known = [number for number in numbers if isinstance(number, int)]
                name = scratchpad if isinstance(scratchpad, str) else None
                return self.planner.plan_again(self.brief, f"plan-{round + 1}", known, name, said)
            case _:
                return None


def _names(found: JsonValue, known: Sequence[str]) -> list[JsonValue]:
    """Return the names of tools that a value of `more_tools` has."""
    rows = found if isinstance(found, list) else []
    return [row["name"] for row in rows if isinstance(row, dict) and row.get("name") in known]


def _told(brief: Brief) -> list[JsonValue] | None:
    """Return the names of the tools that a narrowed brief has, or `None` if it has all."""
    if not any(spec.name == MORE_TOOLS for spec in brief.tools):
        return None
    return [spec.name for spec in brief.tools]


def _numbers(op: Think | None) -> list[int]:
    """Return the numbers of the tasks that an earlier plan has left results of, as the prompt says them."""
    part = op.prompt[-2] if op is not None and len(op.prompt) > 1 else None
    if not isinstance(part, Text) or not part.text.lstrip().startswith(_NUMBERS):
        return []
    return [int(number) for number in re.findall(r"\$([0-9]{1,6})", part.text)]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _shortened(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
