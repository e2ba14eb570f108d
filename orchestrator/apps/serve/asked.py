"""What a body asks of the orchestrator: a conversation and how to sample, put into the options of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.errors import PluginError
from ...core.interfaces import Planner
from ...core.ops import Function, Plugin
from ...runtime.client.client import AsyncOrchestrator, Options
from ...runtime.plugins.spec import parse_plugin
from .bodies import Sampled
from .errors import invalid
from .strategy import Strategy

__all__ = ["Asked", "Wishes", "asked", "functions"]

_EXTRA = ("top_k", "min_p", "repetition_penalty")
"""What only a server takes that has more than OpenAI's fields."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the orchestrator."""

    options: Options
    model: str
    """As the client named it."""
    planner: Plugin
    steps: bool
    """Whether the branches are told."""
    must_call: bool = False
    """Whether the answer has to call a function of the client's."""
    likeliest: int | None = None
    """Tell the answer's tokens, with so many of the likeliest beside each."""
    ignored: tuple[str, ...] = ()
    """Fields of the body that the planner has no option for."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a body says besides its messages, in one form for both endpoints."""

    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    schema: dict[str, JsonValue] | None = None
    tools: tuple[Function, ...] = ()
    """Functions of the client's, whose calls it makes itself."""
    must_call: bool = False
    asking: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further options of a run, as they are."""


def asked(
    body: Sampled,
    conversation: Sequence[Mapping[str, Any]],
    wishes: Wishes,
    strategy: Strategy,
    planner: Plugin,
    orchestrator: AsyncOrchestrator,
    limits: Budget,
) -> Asked:
    """Return what a body asks for. Raises `ApiError` for what cannot be honoured."""
    said = body.plait
    policies = said.policies if said.policies is not None else strategy.policies
    options: dict[str, Any] = {
        "budget": _least(said.budget or Budget(), limits),
        "messages": list(conversation) or None,
    }
    if policies or said.policies is not None:
        options["policies"] = [each if isinstance(each, Plugin) else parse_plugin(each) for each in policies]
    extra = {name: getattr(body, name) for name in _EXTRA if getattr(body, name) is not None}
    given = {
        "model": strategy.model,
        "merge": said.merge,
        "n": said.n,
        "task": said.task,
        "seed": body.seed,
        "stop": wishes.stops or None,
        "functions": wishes.tools or None,
        "output_type": wishes.schema,
        "chat_template_kwargs": body.chat_template_kwargs,
        "extra_body": extra or None,
        **wishes.asking,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    planner, ignored = _sampled(planner, body, wishes, orchestrator, said.plan is None)
    options["planner"] = planner
    likeliest = options.get("top_logprobs")
    return Asked(cast("Options", options), body.model, planner, said.steps, wishes.must_call, likeliest, ignored)


def _sampled(
    planner: Plugin, body: Sampled, wishes: Wishes, orchestrator: AsyncOrchestrator, plans: bool
) -> tuple[Plugin, tuple[str, ...]]:
    """Return a planner with the options that say how to sample, where its class has them, and the names of those that
    it has not, or that its own options overrule."""
    try:
        cls = orchestrator.plugins.class_of("planner", planner.name)
    except PluginError as error:
        raise invalid(str(error), "model") from None
    assert issubclass(cls, Planner)
    wanted: dict[str, JsonValue] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_tokens": wishes.max_tokens,
    }
    given = {key: value for key, value in wanted.items() if value is not None}
    said = {key: value for key, value in given.items() if plans and key in cls.model_fields}
    ignored = tuple(key for key, value in given.items() if key not in said or planner.options.get(key, value) != value)
    return (Plugin(name=planner.name, options={**said, **planner.options}) if plans else planner), ignored


def _least(given: Budget, limits: Budget) -> Budget:
    """Return a budget within both."""
    mine, theirs = given.model_dump(), limits.model_dump()
    return Budget(**{key: min((x for x in (mine[key], theirs[key]) if x is not None), default=None) for key in mine})


def functions(given: Iterable[Mapping[str, Any]], choice: str | dict[str, JsonValue] | None) -> dict[str, Any]:
    """Return the client's functions that `tool_choice` leaves, and whether one has to be called, for `Wishes`."""
    inner = choice.get("function", choice) if isinstance(choice, dict) else None
    only = inner.get("name") if isinstance(inner, dict) else None
    made = [
        Function(name=each["name"], description=each.get("description") or "", parameters=each.get("parameters") or {})
        for each in given
        if choice != "none" and only in (None, each["name"])
    ]
    return {"tools": tuple(made), "must_call": choice == "required" or only is not None}
