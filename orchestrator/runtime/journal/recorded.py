"""Events and actions as a journal holds them: JSON, in actions with long values abridged, and what a later reader takes
from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from ...core.errors import ConfigError
from ...core.events import (
    Action,
    Count,
    Dispatch,
    Event,
    Expand,
    Finish,
    Progressed,
    Stopped,
    Succeeded,
    Tick,
    WakeAt,
    action_adapter,
    event_adapter,
)
from ...core.ops import Call
from ...core.result import Failure, Result
from ...machine import Order, RefuseOrder, SendOrder

_CHARS = 400
"""Characters of JSON above which a value is abridged. Events hold the whole, and a replay makes it again."""
_LEFT_OUT = [
    (name, field.exclude_if) for name, field in Result.model_fields.items() if field.exclude or field.exclude_if
]
"""Fields of a result that are not written down: always, or if a function says so."""
_LONG_IN_FINISH = ("result", "partial")
Refusals = Sequence[tuple[int, RefuseOrder]]
"""Steps that the machine refused, each with its place among the actions."""


def dump(
    actions: Sequence[Action], refused: Sequence[tuple[int, RefuseOrder]] = (), hide: Callable[[str], str] = str
) -> str:
    """Return actions, and the refusals among them, as the JSON list that is written and compared.

    Prompts, token ids and results that are long are abridged to their length and hash: prompts of continued contexts
    would make a journal grow with the square of their length.
    """
    actions, refused = _without_counts(actions, refused)
    said = [_action(action, hide) for action in actions]
    for index, (step, failure, run) in reversed(refused):
        said.insert(index, _object(kind='"refused"', step=as_json(step), run=as_json(run), failure=as_json(failure)))
    return hide(f"[{','.join(said)}]")


def _without_counts(
    actions: Sequence[Action], refused: Sequence[tuple[int, RefuseOrder]]
) -> tuple[Sequence[Action], Sequence[tuple[int, RefuseOrder]]]:
    """Leave out that workers were asked to count prompts: what they said are events, and nothing else follows."""
    if not any(isinstance(action, Count) for action in actions):
        return actions, refused
    kept: list[Action] = []
    places = [0]
    for action in actions:
        if not isinstance(action, Count):
            kept.append(action)
        places.append(len(kept))
    return kept, [(places[index], each) for index, each in refused]


def _action(action: Action, hide: Callable[[str], str]) -> str:
    match action:
        case Dispatch(worker=worker, job=job, reason=reason):
            seconds = "null" if job.seconds is None else as_json(job.seconds)
            generated = _brief(job.generated, hide) if job.generated else "[]"
            report = ',"report":true' if job.report else ""
            return (
                f'{{"kind":"dispatch","worker":{_quoted(worker)},"job":{{"attempt":{job.attempt},'
                f'"run":{_quoted(job.run)},"step":{_quoted(job.step)},"op":{_brief(job.op, hide)},'
                f'"seconds":{seconds},"generated":{generated},"priority":{job.priority}{report}}},'
                f'"reason":{_quoted(reason)}}}'
            )
        case Expand(step=step, attempt=attempt, delta=delta, result=result):
            return _object(
                kind='"expand"',
                step=as_json(step),
                attempt=str(attempt),
                delta=_brief(delta, hide),
                result=_brief(result, hide),
            )
        case Finish():
            kept = {
                field.name: getattr(action, field.name) for field in fields(action) if field.name not in _LONG_IN_FINISH
            }
            long = {name: _brief(getattr(action, name), hide) for name in _LONG_IN_FINISH}
            return _object(**{name: as_json(value) for name, value in kept.items()}, **long)
        case _:
            return as_json(action_adapter.dump_python(action))


def _object(**members: str) -> str:
    return "{" + ",".join([f'"{name}":{text}' for name, text in members.items()]) + "}"


def _brief(value: object, hide: Callable[[str], str]) -> str:
    if isinstance(value, Call):
        args = as_json(value.args) if value.args else "{}"
        text = hide(f'{{"kind":"call","tool":{_quoted(value.tool)},"args":{args}}}')
    else:
        text = hide(as_json(value))
    if len(text) <= _CHARS:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f'"{len(text)} characters {digest}"'


def orders(actions: str | None) -> list[tuple[Order, str]]:
    """Return the orders in recorded actions, each with the run that it concerns. Raises `ConfigError`."""
    found: list[tuple[Order, str]] = []
    try:
        for action in cast("list[dict[str, Any]]", json.loads(actions or "[]")):
            if action["kind"] == "dispatch":
                job = action["job"]
                sent = SendOrder(
                    job["step"], action["worker"], job["attempt"], job.get("priority", 0), action["reason"]
                )
                found.append((sent, job["run"]))
            elif action["kind"] == "refused":
                failure = Failure.model_validate(action["failure"])
                run = action["run"] or action["step"].rpartition(":")[0]
                found.append((RefuseOrder(action["step"], failure, action["run"]), run))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the journal is damaged: recorded actions cannot be read ({error})") from None
    return found


def _run_in(action: Action) -> str:
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
    """Return the part of what a machine said that a journal of some of its runs holds."""
    kept: list[Action] = []
    places = [0]
    for action in actions:
        if _run_in(action) in runs:
            kept.append(action)
        places.append(len(kept))
    return kept, [(places[index], each) for index, each in refused if each.step.rpartition(":")[0] in runs]


def event_json(event: Event) -> str:
    """Return an event as JSON. Most events are of few kinds, which are put together by hand: pydantic's serializer of
    all events takes three times as long."""
    match event:
        case Succeeded(result=result) | Stopped(result=result) if result.patch is None:
            fields = dict(result.__dict__)
            for name, leave_out in _LEFT_OUT:
                if leave_out is None or leave_out(fields[name]):
                    del fields[name]
            fields["usage"] = result.usage.__dict__
            if result.signals is not None:
                fields["signals"] = result.signals.__dict__
            return as_json({"kind": event.kind, "at": event.at, "attempt": event.attempt, "result": fields})
        case Progressed() | Tick():
            return as_json(event)
        case _:
            return as_json(event_adapter.dump_python(event))


def _quoted(text: str) -> str:
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else as_json(text)


def as_json(item: object) -> str:
    """Return a value as JSON. Infinities and lone surrogates survive."""
    plain = item.model_dump() if isinstance(item, BaseModel) else item  # as a model it would write inf as null
    try:
        return to_json(plain, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # a lone surrogate, which UTF-8 cannot say and JSON's escapes can
        return json.dumps(plain, separators=(",", ":"), default=asdict)


def ordered(actions: str | None) -> list[list[object]]:
    """Return the part of recorded actions that later events depend on: which attempt is at which step, which steps are
    cancelled, how runs end. The rest (the wording of a job, wake-up times) may differ between versions."""
    kept = {"dispatch": ("worker",), "cancel": ("step", "attempt"), "finish": ("run", "status")}
    found: list[list[object]] = []
    try:
        for action in cast("list[dict[str, Any]]", json.loads(actions or "[]")):
            if action["kind"] in kept:
                job = cast("dict[str, Any]", action.get("job") or {})
                fields = [action.get(name) for name in kept[action["kind"]]]
                found.append([action["kind"], *fields, job.get("attempt"), job.get("step")])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the journal is damaged: recorded actions cannot be read ({error})") from None
    return found
