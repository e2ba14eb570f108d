"""What a plan's steps get from elsewhere: from the tools, which calls must not be made twice; from the request, which
model answers, with whom cached prefixes are shared, the conversation before it, and what it says of all model calls.
Knows no planner and no worker."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.flow import ask_a_person
from ...core.interfaces import Brief
from ...core.ops import Call, Text, Think
from ...core.plan import Asking, Plan, Request, Step
from ...core.tools.more import MORE_TOOLS
from ...core.tools.tool import ToolSpec


def revised(plan: Plan, brief: Brief) -> Plan:
    """Return a plan with all that the tools and the request of its run say of its steps."""
    return with_approval(marked(with_defaults(plan, brief.request), brief.tools), brief)


def with_defaults(plan: Plan, request: Request) -> Plan:
    """Return a plan in which the model calls that name no model, or no salt, have those of the request; and so for its
    messages and all else that it asks of them (`Request.asks`)."""
    asks = request.asks if request.asks.model_fields_set else None
    if request.model is None and not request.salt and not request.messages and asks is None:
        return plan

    def completed(step: Step) -> Step:
        op = step.op
        if not isinstance(op, Think):
            return step
        update: dict[str, object] = {"model": op.model or request.model, "salt": op.salt or request.salt}
        if asks is not None:
            update |= _asked(op, asks)
        if request.messages and op.chat and op.after is None and "messages" not in op.model_fields_set:
            update["messages"] = request.messages
            if request.messages[-1].role == "tool" and op.prompt == (Text(text=request.text),):
                update["prompt"] = ()  # the conversation has it already
        return step.model_copy(update={"op": op.model_copy(update=update)})

    return plan.model_copy(update={"steps": tuple(map(completed, plan.steps))})


def _asked(op: Think, asks: Asking) -> dict[str, object]:
    """Return what a request says of a model call that says nothing of it."""
    own, sampling = op.sampling, dict[str, object]()
    if asks.stop:
        sampling["stop"] = tuple(dict.fromkeys((*own.stop, *asks.stop)))
    for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
        if (given := getattr(asks, name)) and not getattr(own, name):
            sampling[name] = given
    if asks.top_logprobs is not None and own.top_logprobs is None:
        sampling["top_logprobs"] = asks.top_logprobs
    update: dict[str, object] = {"sampling": own.model_copy(update=sampling)} if sampling else {}
    if asks.extra_body:
        update["extra_body"] = {**asks.extra_body, **op.extra_body}
    if op.chat:
        if asks.chat_template_kwargs:
            update["chat_template_kwargs"] = {**asks.chat_template_kwargs, **op.chat_template_kwargs}
        update["reasoning_effort"] = op.reasoning_effort or asks.reasoning_effort
        if asks.functions and not op.tools:
            update |= {"tools": asks.functions, "tool_choice": "auto"}
    return update


def with_approval(plan: Plan, brief: Brief) -> Plan:
    """Return a plan in which the calls that a person has to allow say so, as the tools and the request have it. What
    the plan itself says of that does not count, unless it is stricter."""
    asked = brief.request.approve
    careful = {each.name: each for each in brief.tools}

    def wanted(op: Call) -> bool | None:
        spec = careful.get(op.tool)
        named = op.tool in asked or "all" in asked or (spec is not None and spec.approve)
        changing = "side-effects" in asked and (spec is None or spec.side_effects)
        hidden = op.tool in (ask_a_person.name, MORE_TOOLS) and spec is None
        return True if (named or changing or op.approve) and not hidden else None

    if all(not isinstance(step.op, Call) or step.op.approve == wanted(step.op) for step in plan.steps):
        return plan
    steps = tuple(
        step.model_copy(update={"op": step.op.model_copy(update={"approve": wanted(step.op)})})
        if isinstance(step.op, Call)
        else step
        for step in plan.steps
    )
    return plan.model_copy(update={"steps": steps})


def marked(plan: Plan, tools: Iterable[ToolSpec]) -> Plan:
    """Return a plan in which the steps that call a tool with side effects say so, unless the tool is idempotent.

    Whoever planned may have left that out, or not have been told; a step that calls no such tool keeps what it says.
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
    return not isinstance(step.op, Call) or effects.get(step.op.tool, step.side_effects) == step.side_effects
