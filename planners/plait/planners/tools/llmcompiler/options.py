"""Options of the planner `llmcompiler`, and its steps for a plan and for the plan's conclusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.errors import PluginError
from plait.core.interfaces import Planner, PlanningContext
from plait.core.ops import Join, Part, Plugin, Ref, Text
from plait.core.plan import Plan, Step
from plait.core.planning import call_model
from plait.core.sampling import StructuredOutput
from plait.core.values import Frozen
from plait.core.vocabulary import MaxBranches, MaxTools, ObservationChars, Repairs, Rounds

from ..._shared.tool_instructions import to_functions
from . import prompts
from .grammar import MOST_TOOLS, grammar

__all__ = ["LLMCompilerOptions"]

MAX_REVISIONS = 20


class PlanState(Frozen):
    """The state of a step that has a reader."""

    round: int
    repair: int = 0
    numbers: tuple[int, ...] = ()
    """Numbers of the tasks that a new task can refer to."""
    scratchpad: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the tools of a narrowed brief."""
    count: int = 0
    """Number of a look at a running plan."""
    open: tuple[str, ...] = ()
    """Tasks without an observation that the model has read."""
    tasks: tuple[dict[str, JsonValue], ...] = ()
    """All tasks so far, as the scratchpad's actions."""

    @property
    def json(self) -> JsonValue:
        """The state as a step keeps it."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def look(self) -> list[Step]:
        """Return the join that waits for the next observation, or nothing if the plan may change no more."""
        if not self.open or self.count > MAX_REVISIONS:
            return []
        op = Join(merge=Plugin(name="constant", options={"value": ""}), on_failure="quorum", quorum=1)
        return [Step(name=f"look-{self.count}", op=op, needs=self.open, expands=True, role="look", state=self.json)]


class LLMCompilerOptions(Planner):
    """The fields of `LLMCompiler`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("joiner",)

    plan: Annotated[CallConfig, Uses("instructions", "tools", "join")] = Field(
        default=CallConfig(thinking="off", max_tokens=1024, temperature=0.0, stream=True, form="calls"),
        description="Writes a plan. Its template holds the instructions, such as the authors' own with examples: "
        "`{instructions}` is the default text, `{tools}` the numbered list of tools, `{join}` the number of the "
        "join. The question and earlier plans follow. `form=calls`: the engine allows nothing but a plan that calls "
        "the tools there are, with arguments as they are typed and references to earlier tasks; where it cannot, or "
        "there are more than 64 tools, the words alone ask for that. `form=none`: it may write anything.",
    )
    joiner: Annotated[CallConfig, Uses("instructions", "replan")] = Field(
        default=CallConfig(thinking="off", max_tokens=512, temperature=0.0),
        description="Reads what the tasks observed, and answers or asks for another plan. In its template "
        "`{instructions}` is the default text, `{replan}` the words on another plan. The question and the "
        "observations follow.",
    )
    dialect: Literal["lines", "native"] = Field(
        default="lines",
        description="Output format of the model. `lines`: numbered tasks. `native`: the tools are also "
        "offered as functions that the model calls by itself (OpenAI's `tools`), all in one turn, for models trained "
        'to call functions that way. The first call is task 1; `"$1"` as an argument is its result. A server '
        "without functions gets the text form alone, with a line in the log. `plan.form` is then left out.",
    )
    max_tools: MaxTools = Field(
        default=None,
        description="Maximum number of tools in one prompt, the best matches first, here of the tools: it finds "
        "others by a task `more_tools`, for another plan. By default all.",
    )
    rounds: Rounds = 2
    repairs: Repairs = 1
    max_branches: MaxBranches = 10_000
    observation_chars: ObservationChars = None
    replan: Literal["whole", "each"] = Field(
        default="whole",
        description="When the plan may change. `whole`: the joiner may ask for another plan. `each`: also after each "
        "observation, 20 at most: the model may add tasks, and drop or replace tasks that have not begun.",
    )
    on_failure: Literal["all", "any-end"] = Field(
        default="any-end",
        description="Handling of failed branches. `any-end`: the joiner reads what a task failed with. "
        "`all`: the first failure ends the run.",
    )
    answer_from: Literal["joiner", "last-task"] = Field(
        default="joiner",
        description="Source of the answer: what the `joiner` says of the tasks. `last-task`: where all of "
        "them were done, it is the last one's result, as it is, which saves a call of the model; the joiner is asked "
        "where one failed or could not be run. For models whose plans end in the task that works out the answer; the "
        "original always asks the joiner.",
    )

    @model_validator(mode="after")
    def _one_language(self) -> LLMCompilerOptions:
        if self.dialect == "native" and isinstance(self.plan.form, StructuredOutput):
            raise PluginError("`dialect=native` and a form of your own are two languages: give one of them")
        if self.replan == "each" and self.answer_from == "last-task":
            raise PluginError("`replan=each` may drop the last task, so `answer_from=last-task` cannot go with it")
        return self

    def plan_step(self, brief: PlanningContext, state: PlanState, pieces: tuple[Part, ...], label: str) -> Step:
        """Return the call that writes a round's plan, or repairs it."""
        form = self.plan.form
        if form == "calls":
            held = not self.calls(brief) and len(brief.tools) <= MOST_TOOLS
            text = grammar(brief.tools, state.numbers, max(state.numbers, default=0) + 1) if held else ""
            form = StructuredOutput(kind="grammar", spec=text, required=False) if held else None
        return call_model(
            brief,
            "llmcompiler",
            f"plan-{state.round}" + (f"-repair-{state.repair}" if state.repair else ""),
            pieces,
            self.plan,
            expands=True,
            role="plan",
            form=form,
            label=label,
            state=state.json,
            stop=self.plan.stop or prompts.STOP_PLAN,
            tools=to_functions(brief.tools) if self.calls(brief) else (),
        )

    def calls(self, brief: PlanningContext) -> bool:
        """Return whether the call offers functions to the model: a plain-text prompt cannot offer them."""
        return self.dialect == "native" and brief.task.chat()

    def plan_again(
        self, brief: PlanningContext, state: PlanState, thought: str = "", errors: Sequence[str] = ()
    ) -> Plan:
        """Return the step that writes another plan, or extends a plan."""
        head = prompts.plan_prompt(self.plan, brief, self.calls(brief))
        observed = Ref(step=state.scratchpad) if state.scratchpad else Text(text="(no task was run)\n")
        end = Text(text=prompts.replan_end(thought, errors, state.numbers))
        pieces = (Text(text=f"{head}{prompts.EARLIER}"), observed, end)
        step = self.plan_step(brief, state, pieces, "repair" if errors else "another plan")
        return Plan(steps=(step,), output=step.name)

    def scratchpad_step(
        self, name: str, actions: Sequence[JsonValue], needs: Sequence[str], label: str = "", earlier: str | None = None
    ) -> Step:
        """Return the join of observations."""
        options: dict[str, JsonValue] = {"actions": list(actions), "earlier": earlier}
        if self.observation_chars is not None:
            options["observation_chars"] = self.observation_chars
        op = Join(merge=Plugin(name="scratchpad", options=options), on_failure=self.on_failure)
        return Step(name=name, op=op, needs=tuple(needs), label=label)

    def unless_done(self, state: PlanState, scratchpad: str, tasks: Sequence[str]) -> Step:
        """Return the join that answers with the last task's value if all tasks succeeded; otherwise its reader plans
        the joiner. It also needs the scratchpad for the joiner."""
        op = Join(merge=Plugin(name="collect"), on_failure=self.on_failure)
        return Step(
            name=f"done-{state.round}",
            op=op,
            needs=(scratchpad, *tasks),
            expands=True,
            label="all done?",
            role="done",
            state=state.json,
        )

    def conclusion(self, brief: PlanningContext, state: PlanState, errors: Sequence[str] = ()) -> tuple[Step, Step]:
        """Return the joiner and the answer step that reads its decision."""
        again = state.round < self.rounds
        native, is_read = self.calls(brief), self.joiner.model == self.plan.model
        plan = prompts.plan_prompt(self.plan, brief, native) if is_read else None
        head, end = prompts.joiner_prompt(self.joiner, brief.task.render(), again, plan)
        nothing = "(no tool was called)\n" + "".join(f"Not run: {error}\n" for error in errors)
        observed = Ref(step=state.scratchpad) if state.scratchpad else Text(text=nothing)
        joiner = call_model(
            brief,
            "llmcompiler",
            f"joiner-{state.round}",
            (Text(text=head), observed, Text(text=end)),
            self.joiner,
            stop=self.joiner.stop or prompts.STOP_JOINER,
            label="joiner",
            # A chat template writes functions before the question: without them nothing would be cached.
            tools=to_functions(brief.tools) if native and is_read and self.joiner.template is None else (),
            tool_choice="none" if native else "required",
        )
        merge = Join(merge=Plugin(name="finish", options={"may_replan": True} if again else {}))
        answer = Step(
            name=f"answer-{state.round}",
            op=merge,
            needs=(joiner.name,),
            expands=again,
            label="answer",
            role="answer" if again else "",
            state=state.json if again else None,
        )
        return joiner, answer
