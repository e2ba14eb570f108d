"""Events as JSON. Frequent kinds of events omit fields with their default value."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from ...core.events import Event, Expanded, Failed, Progressed, Stopped, Submitted, Succeeded, Tick, event_adapter
from ...core.result import NOTHING

_ATOMS = frozenset({str, int, float, bool, type(None)})
_TELLING = ("kind", "type")
"""Fields that distinguish the classes of a union: always written."""

_WRITTEN = object()
"""Placeholder default of a field that is always written: equal to no value."""


def event_json(event: Event) -> str:
    """Return an event as JSON for `event_adapter`. A step causes one to three events of the kinds handled here;
    pydantic's serializer takes several times as long and writes every default."""
    if isinstance(event, Succeeded | Stopped):
        result = without_defaults(event.result) if event.result is not NOTHING else None
        body = as_json(result) if result else "{}"
        return f'{{"kind":"{event.kind}","at":{event.at!r},"attempt":{event.attempt},"result":{body}}}'
    if isinstance(event, Progressed | Tick):
        return as_json(event)
    if isinstance(event, Failed):
        fields: dict[str, object] = {"kind": event.kind, "at": event.at, "attempt": event.attempt}
        fields["failure"] = without_defaults(event.failure)
        if usage := without_defaults(event.usage):
            fields["usage"] = usage
        return as_json(fields)
    if isinstance(event, Expanded):
        return as_json(_expanded(event))
    if isinstance(event, Submitted):
        request, plan = event.request.model_dump(), without_defaults(event.plan)
        return as_json({"kind": event.kind, "at": event.at, "run": event.run, "request": request, "plan": plan})
    return as_json(event_adapter.dump_python(event))


def _expanded(event: Expanded) -> dict[str, object]:
    fields: dict[str, object] = {"kind": event.kind, "at": event.at, "step": event.step, "attempt": event.attempt}
    if event.patch is not None:
        fields["patch"] = without_defaults(event.patch)
    if event.failure is not None:
        fields["failure"] = without_defaults(event.failure)
    for name in ("closed", "waited", "cut", "refused"):
        if value := getattr(event, name):
            fields[name] = value
    return fields


def without_defaults(model: BaseModel) -> dict[str, object]:
    """Return the JSON fields of a model and its nested models, without fields at their default."""
    fields = model.__dict__
    kept: dict[str, object] = {}
    for name, default, lean in _given_fields(type(model), frozenset(model.__pydantic_fields_set__)):
        value: object = fields[name]
        if value is default:
            continue
        kind = type(value)
        if kind in _ATOMS:
            if kind is not type(default) or value != default:
                kept[name] = value
        elif kind is tuple and value and type(cast("tuple[object, ...]", value)[0]) in _ATOMS:
            kept[name] = value  # such as a step's needs: all items of a container have one type
        elif isinstance(value, BaseModel):
            inner = without_defaults(value)
            if inner != lean:
                kept[name] = inner
        elif value or default:
            kept[name] = _contained(value)
        elif value != default:  # an empty container whose default is not empty
            kept[name] = value
    return kept


def _contained(value: object) -> object:
    """Return a container as JSON. Its items have one type: models, or JSON values."""
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value)
        if isinstance(next(iter(pairs.values()), None), BaseModel):
            return {key: without_defaults(cast("BaseModel", model)) for key, model in pairs.items()}
        return pairs
    items = cast("Sequence[object]", value)
    if items and isinstance(items[0], BaseModel):
        return [without_defaults(cast("BaseModel", model)) for model in items]
    return items


@functools.lru_cache(maxsize=4096)
def _given_fields(cls: type[BaseModel], given: frozenset[str]) -> tuple[tuple[str, object, object], ...]:
    """Return the written fields of a class for a model's set fields, each with its default, and, for a default that is
    a model, with the default's own non-default fields."""
    fields: list[tuple[str, object, object]] = []
    for name, field in cls.model_fields.items():
        telling = name in _TELLING or field.is_required()
        if field.exclude or not (telling or name in given):
            continue
        default: object = field.default  # the default object itself: `get_default` would return a copy
        if field.default_factory is not None:
            default = field.get_default(call_default_factory=True, validated_data={})
        lean = without_defaults(default) if isinstance(default, BaseModel) else _WRITTEN
        fields.append((name, _WRITTEN if telling else default, lean))
    return tuple(fields)


def as_json(item: object) -> str:
    """Return a value as JSON. Infinities and lone surrogates survive."""
    plain = item.model_dump() if isinstance(item, BaseModel) else item  # as a model it would write inf as null
    try:
        return to_json(plain, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # a lone surrogate, which JSON escapes can encode but UTF-8 cannot
        return json.dumps(plain, separators=(",", ":"), default=asdict)
