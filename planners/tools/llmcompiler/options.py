"""Options of the planner `llmcompiler`, and the steps that they make: of a plan, and of what is said at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.errors import PluginError
from plait.core.interfaces import Brief, Planner
from plait.core.ops import Function, Join, Plugin, Ref, Sampling, Structured, Text, Think
from plait.core.plan import Plan, Step
from plait.core.tools.more import MORE_TOOLS

from ..._shared.seeds import derive
from . import prompts

__all__ = ["DONE", "NUMBERS", "LLMCompilerOptions"]

NUMBERS = "Results that can be referred to: "
DONE = "done-"
"""Of a round's step that looks whether all tasks were done: the beginning of its name."""


class LLMCompilerOptions(Planner):
    """The fields of `LLMCompiler`."""

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
    answer: Literal["joiner", "last-task"] = "joiner"
    """Who answers once the tasks have ended. `last-task`: where all of them were done, the last one's result is the
    answer, as it is, which saves a call of the model; the joiner is asked where one failed or could not be run. For
    models whose plans end in the task that works out the answer; the original always asks the joiner."""
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
    def _one_language(self) -> LLMCompilerOptions:
        if self.native and self.constrained:
            raise PluginError("`native` calls and a `constrained` plan are two languages: give one of them")
        return self

    def plan_step(self, brief: Brief, name: str, prompt: tuple[Text | Ref, ...], label: str) -> Step:
        sampling = self._sampling(brief, name, self.plan_tokens, prompts.STOP_PLAN)
        if self.constrained:
            form = Structured(kind="regex", spec=prompts.expression(brief.tools))
            sampling = sampling.model_copy(update={"structured": form})
        tools = (
            [Function(name=spec.name, description=spec.description, parameters=spec.parameters) for spec in brief.tools]
            if self.calls(brief)
            else ()
        )
        op = Think(prompt=prompt, chat=brief.task.chat(), sampling=sampling, stream=True, tools=tools)
        return Step(name=name, op=op, expands=True, label=label, state=_told(brief))

    def calls(self, brief: Brief) -> bool:
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
        native = self.calls(brief)
        question, own = brief.task.render(), self.instructions
        head = prompts.plan(brief.tools, question, self.examples, after, replan=True, native=native, rules=own)
        parts: list[Text | Ref] = [Text(text=f"{head}\nPrevious Plan:\n\n")]
        parts.append(Ref(step=scratchpad) if scratchpad else Text(text="(no task was run)\n"))
        parts.append(Text(text=prompts.replan_end(thought, errors)))
        listed = ", ".join(f"${number}" for number in numbers) or "none"
        parts += [Text(text=f"\n{NUMBERS}{listed}\n"), Text(text="\nCurrent Plan:\n\n")]
        step = self.plan_step(brief, name, tuple(parts), "repair" if errors else "another plan")
        return Plan(steps=(step,), output=step.name)

    def unless_done(
        self, brief: Brief, round: int, numbers: Sequence[int], scratchpad: str, tasks: Sequence[str]
    ) -> Step:
        """Return the join that ends a plan by its last task where all were done; its reader asks the joiner if not. It
        needs the scratchpad too, which the joiner would read."""
        state: dict[str, JsonValue] = {"round": round, "numbers": list(numbers), "scratchpad": scratchpad}
        told = _told(brief)
        state |= {} if told is None else {"told": told}
        op = Join(merge=Plugin(name="collect"), tolerate=self.tolerate)
        return Step(
            name=f"{DONE}{round}", op=op, needs=(scratchpad, *tasks), expands=True, label="all done?", state=state
        )

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


def _told(brief: Brief) -> list[JsonValue] | None:
    """Return the names of the tools that a narrowed brief has, or `None` if it has all."""
    if not any(spec.name == MORE_TOOLS for spec in brief.tools):
        return None
    return [spec.name for spec in brief.tools]
