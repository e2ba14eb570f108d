"""Prepare a planner's plan: validate it, and complete its steps with the settings of tools and request.

Tools declare which calls must not be made twice. The request sets the model, the salt of cached prefixes, the messages
before the question, and the defaults of all model calls. No worker is involved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...core.errors import PlannerError, UsageError
from ...core.flow import ask_a_person
from ...core.interfaces import MOST_STEPS, Planner, PlanningContext
from ...core.ops import Join, ModelCall, Text, ToolCall
from ...core.plan import Plan, Step
from ...core.request import Request
from ...core.rights import Rights
from ...core.sampling import ANSWER_FIELDS, resolve, set_fields
from ...core.tools.tool import ToolSpec
from ...core.tools.tool_search import MORE_TOOLS
from ...core.values import json_value


def revised(plan: Plan, brief: PlanningContext) -> Plan:
    """Return a plan completed with the settings of its run's tools and request. Raises `NotAllowed` for a step that
    exceeds the rights of the run."""
    if brief.request.rights.__dict__ != _ALL.__dict__:
        brief.request.rights.hold(plan)
    return with_approval(marked(with_defaults(plan, brief.request), brief.tools), brief)


_ALL = Rights.model_construct()


def answering(plan: Plan, request: Request) -> Plan:
    """Return a run's first plan with the request's settings for the answer (a required function call, its beginning,
    its form) in the calls that generate it: the output step, or the branches of its join."""
    # Later plans ask other questions too: they get functions as an offer only, and a required call is checked in the
    # answer.
    must_call = request.tool_choice not in ("auto", "none")
    if not (must_call or request.begin or request.form is not None):
        return plan
    output = next((step for step in plan.steps if step.name == plan.output), None)
    asked = () if output is None else output.needs if isinstance(output.op, Join) else (output.name,)

    def completed(step: Step) -> Step:
        op = step.op
        if step.name not in asked or step.expands or not isinstance(op, ModelCall):
            return step
        update: dict[str, object] = {}
        if must_call and op.tool_choice == "auto":
            update |= {"tools": request.tools, "tool_choice": request.tool_choice}
        if request.begin and op.chat and not op.begin:
            update["begin"] = request.begin
        if request.form is not None and op.sampling.structured is None:
            update["sampling"] = op.sampling.model_copy(update={"structured": request.form})
        return step.model_copy(update={"op": op.model_copy(update=update)}) if update else step

    return plan.model_copy(update={"steps": tuple(map(completed, plan.steps))})


def with_defaults(plan: Plan, request: Request) -> Plan:
    """Return a plan whose model calls have the request's model, salt, messages, functions and `generation`, unless they
    set their own."""
    # Fields of the answer alone are left out: the planner has them in its options.
    generation = _without(set_fields(request.generation), ANSWER_FIELDS)
    plain = _without(generation, _IN_CHATS)
    apart = request.rights.apart
    if request.model is None and not (request.salt or request.messages or request.tools or generation or apart):
        return plan
    offered = tuple(tool for tool in request.tools if request.tool_choice in ("auto", "required", tool.name))

    def completed(step: Step) -> Step:
        op = step.op
        if not isinstance(op, ModelCall):
            return step
        salt = request.salt if apart else op.salt or request.salt
        update: dict[str, object] = {"model": op.model or request.model, "salt": salt}
        if asked := generation if op.chat else plain:
            update["sampling"] = op.sampling.model_copy(update=resolve(op.sampling, request=asked))
        if offered and op.chat and not op.tools:
            parallel = request.parallel_tool_calls
            update |= {"tools": offered, "tool_choice": "auto", "parallel_tool_calls": parallel}
        if request.messages and op.chat and op.after is None and "messages" not in op.model_fields_set:
            update["messages"] = request.messages
            if request.asked and op.prompt == (Text(text=request.text),):
                update["prompt"] = ()  # the conversation has it already
        return step.model_copy(update={"op": op.model_copy(update=update)})

    return plan.model_copy(update={"steps": tuple(map(completed, plan.steps))})


def _without(fields: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in names}


_IN_CHATS = ("chat_template_kwargs", "reasoning_effort")
"""Fields of `generation` that only a chat template reads."""


def with_approval(plan: Plan, brief: PlanningContext) -> Plan:
    """Return a plan whose calls are marked for approval as the tools and the request require. The plan's own marks
    count only if they are stricter."""
    asked = brief.request.approve
    careful = {tool.name: tool for tool in brief.tools}

    def wanted(op: ToolCall) -> bool | None:
        spec = careful.get(op.tool)
        named = op.tool in asked or "all" in asked or (spec is not None and spec.approve)
        changing = "side-effects" in asked and (spec is None or spec.side_effects)
        # Questions to a person and the search for tools have no effects; approval of a question would be a second one.
        hidden = op.tool in (ask_a_person.name, MORE_TOOLS) and spec is None
        return True if (named or changing or op.approve) and not hidden else None

    if all(not isinstance(step.op, ToolCall) or step.op.approve == wanted(step.op) for step in plan.steps):
        return plan
    steps = tuple(
        step.model_copy(update={"op": step.op.model_copy(update={"approve": wanted(step.op)})})
        if isinstance(step.op, ToolCall)
        else step
        for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def marked(plan: Plan, tools: Iterable[ToolSpec]) -> Plan:
    """Return a plan whose calls of tools with side effects are marked, unless the tool is idempotent.

    A planner may have left the mark out, or not know of the effects. Steps without such a tool keep their marks.
    """
    effects = {spec.name: spec.once for spec in tools if spec.side_effects}
    if not effects or all(_as_it_should_be(step, effects) for step in plan.steps):
        return plan
    steps = tuple(
        step if _as_it_should_be(step, effects) else step.model_copy(update={"side_effects": not step.side_effects})
        for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def _as_it_should_be(step: Step, effects: dict[str, bool]) -> bool:
    return not isinstance(step.op, ToolCall) or effects.get(step.op.tool, step.side_effects) == step.side_effects


def demand_size(planner: Planner, brief: PlanningContext) -> None:
    """Raise `UsageError` if a planner's options ask for too many steps, before it makes them."""
    asked, limit = planner.size(), max(MOST_STEPS, brief.request.budget.steps or 0)
    if asked > limit:
        option = f" (n={asked})" if getattr(planner, "n", None) == asked else ""
        raise UsageError(
            f"{type(planner).__name__} asks for {asked:,} steps{option} and {limit:,} are the most: ask for fewer, or "
            "allow more with a budget's `steps`"
        )


def sound_plan(given: object, planner: str) -> Plan:
    """Return a planner's plan if its parts have the right types. Raises `PlannerError`."""
    # Planners are user code, and may have built the plan without validation.
    if not isinstance(given, Plan):
        raise PlannerError(f"{planner} planned a {type(given).__name__}, which is not a Plan")
    for step in given.steps:
        if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PlannerError(f"{planner} planned a {type(step).__name__} as a step, which is not a Step")
        if step.op.kind == "call":
            try:
                json_value(step.op.args)
            except ValueError as error:
                raise PlannerError(f"{planner}: arguments of the call {step.name!r}: {error}") from None
    if not isinstance(given.output, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PlannerError(
            f"{planner}: the output of a plan is the name of a step, and not a {type(given.output).__name__}"
        )
    return given
