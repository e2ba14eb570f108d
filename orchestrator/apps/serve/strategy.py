"""Which planner, policies and model a request asks for: by the name of its model, and by its field `plait`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import Field

from ...core.budget import Budget
from ...core.errors import PluginError
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.values import Frozen
from .errors import ApiError, invalid, not_found

__all__ = ["PREFIX", "PlaitField", "ServedStrategy", "resolve"]

PREFIX = "plait/"
_MORE = re.compile(r"\+(?=[a-z][a-z0-9.-]*(?:[:+]|$))")
"""Where a policy begins: `sample:n=16+consensus`."""


@dataclass(frozen=True, slots=True)
class ServedStrategy:
    """What the name of a model asks for."""

    planner: Plugin | None = None
    policies: tuple[Plugin, ...] = ()
    model: str | None = None
    """The model that answers; `None`: any."""


class PlaitField(Frozen):
    """The field `plait` of a body: what OpenAI's fields have no words for."""

    planner: str | Plugin | None = None
    """As in the name of a model: `sample:n=16`."""
    policies: tuple[str | Plugin, ...] | None = None
    merge: str | Plugin | None = None
    n: int | None = Field(default=None, ge=1)
    task: str | Plugin | None = None
    plan: Plan | None = None
    """A finished plan, in the place of a planner's."""
    budget: Budget | None = None
    steps: bool = False
    """Whether the branches are told: as reasoning, with the ids of their steps."""


def resolve(name: str, aliases: Mapping[str, str], served: Collection[str], any_name: bool) -> ServedStrategy:
    """Return what the name of a model asks for.

    Args:
        name: `plait/PLANNER:option=value+POLICY@MODEL`, an alias, or the name of a model.
        aliases: other names, each once.
        served: models that the workers have.
        any_name: whether a worker takes any name.

    Raises `ApiError` for a name that stands for nothing.
    """
    said = aliases.get(name, name)
    if not said.startswith(PREFIX):
        if said in served or any_name:
            return ServedStrategy(model=said if said in served else None)
        raise _no_model(name, served, aliases)
    plan, at, model = said.removeprefix(PREFIX).rpartition("@")
    plan, model = (plan, model) if at else (model, "")
    if model and model not in served and not any_name:
        raise _no_model(model, served, aliases)
    try:
        first, *policies = map(Plugin.of, _MORE.split(plan))
    except PluginError as error:
        raise invalid(f"model {name!r}: {error}", "model") from None
    return ServedStrategy(first, tuple(policies), model or None)


def _no_model(name: str, served: Collection[str], aliases: Mapping[str, str]) -> ApiError:
    known = ", ".join(sorted({*served, *aliases})[:20])
    message = f"there is no model {name!r} here; there are: {known} (or plait/PLANNER@MODEL)"
    return not_found(message, "model", "model_not_found")
