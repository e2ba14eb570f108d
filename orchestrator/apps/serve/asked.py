"""What a body asks of the orchestrator: a conversation and how to sample, put into the options of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from ...core.errors import PluginError
from ...core.interfaces import Planner
from ...core.plan import Budget, Function, Plugin
from ...runtime.client.client import AsyncOrchestrator, Options
from ...runtime.plugins.spec import parse_plugin
from .bodies import Message, Part, Sampled
from .errors import invalid, unsupported
from .strategy import Strategy

__all__ = ["Asked", "asked"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the orchestrator."""

    text: str
    options: Options
    model: str
    """As the client named it."""
    planner: Plugin
    steps: bool
    """Whether the branches are told."""
    tools: tuple[Function, ...] = ()
    """Functions of the client's, whose calls it makes itself."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a body says besides its messages, in one form for both endpoints."""

    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    schema: dict[str, JsonValue] | None = None
    tools: tuple[Function, ...] = ()
    tool_choice: str | dict[str, JsonValue] | None = None


def asked(
    body: Sampled,
    conversation: Sequence[Message],
    wishes: Wishes,
    strategy: Strategy,
    planner: Plugin,
    orchestrator: AsyncOrchestrator,
    limits: Budget,
) -> Asked:
    """Return what a body asks for. Raises `ApiError` for what cannot be honoured."""
    field = body.plait
    policies = field.policies if field.policies is not None else strategy.policies
    options: Options = {"budget": _least(field.budget or Budget(), limits)}
    if strategy.model is not None:
        options["model"] = strategy.model
    if policies or field.policies is not None:
        options["policies"] = [each if isinstance(each, Plugin) else parse_plugin(each) for each in policies]
    if field.merge is not None:
        options["merge"] = field.merge
    if field.n is not None:
        options["n"] = field.n
    if field.task is not None:
        options["task"] = field.task
    if body.seed is not None:
        options["seed"] = body.seed
    if wishes.tools:
        raise unsupported("tools", "functions of the client's are not taken yet: leave `tools` out")
    if wishes.schema is not None:
        raise unsupported("response_format", "forms are not taken yet: leave `response_format` out")
    if wishes.stops:
        raise unsupported("stop", "stop texts are not taken yet: leave `stop` out")
    planner = _sampled(planner, body, wishes, orchestrator, field.plan is None)
    options["planner"] = planner
    return Asked(_text(conversation), options, body.model, planner, field.steps, wishes.tools)


def _sampled(planner: Plugin, body: Sampled, wishes: Wishes, orchestrator: AsyncOrchestrator, plans: bool) -> Plugin:
    """Return a planner with the options that say how to sample, where its class has them."""
    try:
        cls = orchestrator.plugins.class_of("planner", planner.name)
    except PluginError as error:
        raise invalid(str(error), "model") from None
    assert issubclass(cls, Planner)
    wanted: dict[str, JsonValue] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_tokens": wishes.max_tokens,
        "stream": True if body.stream and (body.plait.steps or cls.n_option is None) else None,
    }
    said = {key: value for key, value in wanted.items() if value is not None and key in cls.model_fields}
    return Plugin(name=planner.name, options={**said, **planner.options}) if plans else planner


def _least(given: Budget, limits: Budget) -> Budget:
    """Return a budget within both."""
    mine, theirs = given.model_dump(), limits.model_dump()
    return Budget(**{key: min((x for x in (mine[key], theirs[key]) if x is not None), default=None) for key in mine})


def _text(conversation: Sequence[Message]) -> str:
    """Return a conversation as one text."""
    said = [(each.role, _content(each, place)) for place, each in enumerate(conversation)]
    if len(said) == 1:
        return said[0][1]
    return "\n\n".join(f"{role}: {text}" for role, text in said)


def _content(message: Message, place: int) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    return "".join(_part(part, f"messages[{place}].content[{number}]") for number, part in enumerate(message.content))


def _part(part: Part, param: str) -> str:
    if part.type not in ("text", "input_text", "output_text"):
        raise unsupported(param, f"parts of type {part.type!r} are not taken: give text")
    if part.text is None:
        raise invalid("a part of type text needs `text`", param)
    return part.text


def functions(given: Mapping[str, Any]) -> Function:
    """Return a client's function as the core has it."""
    return Function(
        name=given["name"], description=given.get("description") or "", parameters=given.get("parameters") or {}
    )
