"""Of actions what later events depend on, as a journal holds it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from ...core.errors import ConfigError
from ...core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Expanded,
    Failed,
    Finish,
    Progressed,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WakeAt,
    event_adapter,
)
from ...core.request import Request
from ...core.result import NOTHING, Failure

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
        request, plan = _request_json(event.request), as_json(without_defaults(event.plan))
        return f'{{"kind":"submitted","at":{event.at!r},"run":"{event.run}","request":{request},"plan":{plan}}}'
    return as_json(event_adapter.dump_python(event))


def _request_json(request: Request) -> str:
    """Return a request as JSON. Most requests differ in their texts alone, so the rest of a few is kept."""
    if request.messages:  # they are large, and no two requests share them
        return as_json(request)
    values = (*{**request.__dict__, "text": ""}.values(),)
    key = tuple(map(id, values))
    known = _REQUESTS.get(key)
    if known is None:
        if len(_REQUESTS) >= _MOST_REQUESTS:
            _REQUESTS.clear()
        text = as_json(request.model_copy(update={"text": ""}))
        known = _REQUESTS[key] = values, text.removeprefix('{"text":""')
    return f'{{"text":{as_json(request.text)}{known[1]}'


_REQUESTS: dict[tuple[int, ...], tuple[object, str]] = {}
"""By the identities of a request's values but the text: these values, which are thereby kept, and their JSON."""
_MOST_REQUESTS = 64


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


if TYPE_CHECKING:  # a list of runs is shown without a machine
    from ...machine import Order, RefuseOrder

Refusals: TypeAlias = "Sequence[tuple[int, RefuseOrder]]"
"""Steps that the machine refused, each with its place among the actions."""
_EMPTY = '""'


def dump(actions: Sequence[Action], refused: Refusals = (), hide: Callable[[str], str] = str) -> str:
    """Return the parts of actions that later events depend on, and the refusals among them, as the JSON list that is
    written and compared: attempts with their steps and workers, cancelled steps, ended runs.

    The events determine the rest: prompts, input of readers, wake-up times. An answer is recorded as its hash.
    """
    items: list[str] = []
    waiting = list(refused) if refused else []
    for index, action in enumerate(actions):
        while waiting and waiting[0][0] <= index:
            items.append(_refused(waiting.pop(0)[1]))
        if isinstance(action, Dispatch):
            job, reason = action.job, action.reason
            step, worker = encode_basestring_ascii(job.step), _quoted(action.worker)  # an id is ASCII
            items.append(
                f'["dispatch",{job.attempt},{step},{worker},{job.priority},{_quoted(reason) if reason else _EMPTY}]'
            )
        elif isinstance(action, Cancel):
            attempt = "null" if action.attempt is None else action.attempt
            items.append(f'["cancel",{attempt},{_quoted(action.step)}]')
        elif isinstance(action, Finish):
            made = hide(as_json([action.result, action.failure, action.partial, action.usage, action.steps]))
            digest = hashlib.blake2b(made.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            items.append(f'["finish",{_quoted(action.run)},"{action.status}","{digest}"]')
    items += [_refused(refusal) for _, refusal in waiting]
    return hide(f"[{','.join(items)}]") if items else "[]"


def _refused(order: RefuseOrder) -> str:
    return f'["refused",{as_json(order.step)},{as_json(order.failure)},{as_json(order.run)}]'


@dataclass(frozen=True, slots=True)
class RecordedActions:
    """Recorded actions, read."""

    orders: list[tuple[Order, str]]
    """The orders that the machine follows, each with its run."""
    ended: list[tuple[str, str]]
    """Runs that ended, and how."""
    cancelled: list[int]
    """Attempts that were asked to stop."""


def read(actions: str | None) -> RecordedActions:
    """Return recorded actions. Raises `ConfigError`."""
    from ...machine import RefuseOrder, SendOrder

    recorded = RecordedActions([], [], [])
    try:
        for action in _listed(actions):
            match action:
                case ["dispatch", int() as attempt, str() as step, str() as worker, int() as priority, str() as reason]:
                    order = SendOrder(step, worker, attempt, priority, reason)
                    recorded.orders.append((order, step.rpartition(":")[0]))
                case ["refused", str() as step, failure, str() as run]:
                    order = RefuseOrder(step, Failure.model_validate(failure), run)
                    recorded.orders.append((order, run or step.rpartition(":")[0]))
                case ["finish", str() as run, str() as status, _]:
                    recorded.ended.append((run, status))
                case ["cancel", attempt, str()] if attempt is None or type(attempt) is int:
                    recorded.cancelled.extend([] if attempt is None else [attempt])
                case _:
                    raise ValueError(f"{action!r:.100} is no action")
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the journal is damaged: recorded actions cannot be read ({error})") from None
    return recorded


def of_run(actions: str | None, run: str) -> str | None:
    """Return the part of recorded actions that concerns one run."""
    if actions is None or run not in actions:
        return None if actions is None else "[]"
    return as_json([action for action in _listed(actions) if _subject(action).partition(":")[0] == run])


def _listed(actions: str | None) -> list[list[Any]]:
    try:
        listed = cast("list[list[Any]]", json.loads(actions or "[]"))
    except ValueError as error:
        raise ConfigError(f"the journal is damaged: recorded actions cannot be read ({error})") from None
    if not isinstance(listed, list) or any(  # pyright: ignore[reportUnnecessaryIsInstance]
        type(action) is not list or not action or type(action[0]) is not str for action in listed
    ):
        raise ConfigError(f"the journal is damaged: {listed!r:.100} are no recorded actions")
    return listed


def _subject(action: list[Any]) -> str:
    """Return the step (or run) that a recorded action is about."""
    place = {"dispatch": 2, "cancel": 2}.get(action[0], 1)
    return str(action[place]) if len(action) > place else ""


def run_in(action: Action) -> str:
    """Return the run that an action concerns; empty for one that concerns none."""
    match action:
        case Dispatch(job=job):
            return job.run
        case Finish(run=run):
            return run
        case WakeAt():
            return ""
        case _:
            return action.step.rpartition(":")[0]


def of_runs(runs: Container[str], actions: Sequence[Action], refused: Refusals) -> tuple[list[Action], Refusals]:
    """Return the part of a machine's actions for a journal of some of its runs."""
    kept: list[Action] = []
    places = [0]
    for action in actions:
        if run_in(action) in runs:
            kept.append(action)
        places.append(len(kept))
    return kept, [(places[index], refusal) for index, refusal in refused if refusal.step.rpartition(":")[0] in runs]


def _quoted(text: str) -> str:
    return encode_basestring_ascii(text) if text.isascii() else as_json(text)


def ordered(actions: str | None) -> list[list[object]]:
    """Return the part of recorded actions that must be equal for a resume: attempts with their steps, cancelled steps,
    ended runs. The rest may differ between versions."""
    kept = {"dispatch": 4, "cancel": 3, "finish": 3}
    return [action[: kept[action[0]]] for action in _listed(actions) if action[0] in kept]
