"""Events as a journal holds them, as JSON, and of actions what later events depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from ...core.errors import ConfigError
from ...core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Finish,
    Progressed,
    Stopped,
    Succeeded,
    Tick,
    WakeAt,
    event_adapter,
)
from ...core.result import Failure, Result
from ...machine import Order, RefuseOrder, SendOrder

_LEFT_OUT = [
    (name, field.exclude_if) for name, field in Result.model_fields.items() if field.exclude or field.exclude_if
]
"""Fields of a result that are not written down: always, or if a function says so."""
Refusals = Sequence[tuple[int, RefuseOrder]]
"""Steps that the machine refused, each with its place among the actions."""


def dump(actions: Sequence[Action], refused: Refusals = (), hide: Callable[[str], str] = str) -> str:
    """Return what later events depend on in actions, and the refusals among them, as the JSON list that is written and
    compared: which attempt is at which step on which worker, what was cancelled, how runs ended.

    All else follows from the events: prompts, what readers are fed, wake-up times. An answer stands there as its hash.
    """
    items: list[str] = []
    waiting = list(refused)
    for index, action in enumerate(actions):
        while waiting and waiting[0][0] <= index:
            items.append(_refused(waiting.pop(0)[1]))
        match action:
            case Dispatch(worker=worker, job=job, reason=reason):
                items.append(
                    f'["dispatch",{job.attempt},{_quoted(job.step)},{_quoted(worker)},{job.priority},{_quoted(reason)}]'
                )
            case Cancel(step=step, attempt=attempt):
                items.append(f'["cancel",{"null" if attempt is None else attempt},{_quoted(step)}]')
            case Finish(run=run, status=status):
                made = hide(as_json([action.result, action.failure, action.partial, action.usage, action.steps]))
                digest = hashlib.blake2b(made.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
                items.append(f'["finish",{_quoted(run)},"{status}","{digest}"]')
            case _:
                pass
    items += [_refused(refusal) for _, refusal in waiting]
    return hide(f"[{','.join(items)}]") if items else "[]"


def _refused(order: RefuseOrder) -> str:
    return f'["refused",{as_json(order.step)},{as_json(order.failure)},{as_json(order.run)}]'


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recorded actions, read."""

    orders: list[tuple[Order, str]]
    """What the machine follows, each with the run that it concerns."""
    ended: list[tuple[str, str]]
    """Runs that ended, and how."""
    cancelled: list[int]
    """Attempts that were told to stop."""


def read(actions: str | None) -> Recorded:
    """Return recorded actions. Raises `ConfigError`."""
    recorded = Recorded([], [], [])
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


def about(actions: Sequence[Action], refused: Refusals = ()) -> set[str]:
    """Return the runs that actions and refusals concern."""
    return {_run_in(action) for action in actions} | {refusal.step.rpartition(":")[0] for _, refusal in refused}


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
    return kept, [(places[index], refusal) for index, refusal in refused if refusal.step.rpartition(":")[0] in runs]


def event_json(event: Event) -> str:
    """Return an event as JSON. Most events are of few kinds, which are put together by hand: pydantic's serializer of
    all events takes three times as long."""
    match event:
        case Succeeded(result=result) | Stopped(result=result) if result.patch is None:
            fields = dict(result.__dict__)
            for name, leave_out in _LEFT_OUT:
                if leave_out is None or leave_out(fields[name]):
                    del fields[name]
            usage = fields["usage"] = dict(result.usage.__dict__)
            if sources := usage.pop("sources").model_dump():
                usage["sources"] = sources
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
    """Return the part of recorded actions that has to be the same for a run to go on: which attempt is at which step,
    which steps are cancelled, how runs end. The rest may differ between versions."""
    kept = {"dispatch": 4, "cancel": 3, "finish": 3}
    return [action[: kept[action[0]]] for action in _listed(actions) if action[0] in kept]
