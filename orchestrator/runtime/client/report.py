"""What a finished run cost and where its time went: plain data that can be printed, written and sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import JsonValue, PlainSerializer, PlainValidator

from ...core.ops import Kind
from ...core.record import StepRecord
from ...core.result import Usage
from ...core.values import Frozen
from ..runlog import RunRecord


def _read(rows: Iterable[StepRecord | Mapping[str, Any]]) -> tuple[StepRecord, ...]:
    return tuple([row if isinstance(row, StepRecord) else StepRecord.read(row) for row in rows])


def _rows(steps: tuple[StepRecord, ...]) -> list[dict[str, JsonValue]]:
    return [step.row() for step in steps]


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch of the chain of steps that the end of the run waited for."""

    step: str
    waited: float
    """Seconds in the queue, or between its last need and its being ready."""
    ran: float
    """Seconds on a worker (for a step that expanded: of its own attempt)."""
    kind: Kind


class Report(Frozen):
    """What a run cost."""

    usage: Usage = Usage()
    critical_path_tokens: int = 0
    """Most generated tokens along any chain of steps that the answer was made from."""
    seconds: float = 0.0
    """Wall-clock from submission to the end."""
    waited_for: tuple[Spell, ...] = ()
    """The chain of steps that the end waited for, first to last; its times add up to nearly `seconds`."""
    steps: Annotated[tuple[StepRecord, ...], PlainValidator(_read), PlainSerializer(_rows)] = ()

    def __repr__(self) -> str:
        return f"<{len(self.steps)} steps, {self.usage.completion} tokens, {self.seconds:.2f} s>"

    def time_by(self) -> dict[str, float]:
        """Return where the wall-clock went, in seconds: model, tools, queue, and the rest (planning, transport)."""
        model = sum(spell.ran for spell in self.waited_for if spell.kind == "think")
        tools = sum(spell.ran for spell in self.waited_for if spell.kind == "call")
        queue = sum(spell.waited for spell in self.waited_for)
        rest = max(0.0, self.seconds - model - tools - queue)
        return {"model": model, "tools": tools, "queue": queue, "other": rest}


def report(run: RunRecord) -> Report:
    """Return the report of a run, as far as it has come."""
    steps, finish, output = run.steps, run.finish, run.output
    return Report(
        usage=Usage() if finish is None else finish.usage,
        critical_path_tokens=0 if finish is None else finish.critical_path_tokens,
        seconds=run.seconds,
        waited_for=() if output is None else _waited_for(steps, output),
        steps=steps,
    )


def _waited_for(steps: Sequence[StepRecord], output: str) -> tuple[Spell, ...]:
    """Walk back from the output along the steps that ended last before each could go on."""
    known = {step.step: step for step in steps}
    expanded = {step.owner for step in steps}
    spells: list[Spell] = []
    seen: set[str] = set()
    entered: set[str] = set()
    step = known.get(output)
    while step is not None and step.step not in seen:
        if step.source is not None and step.step not in entered:
            entered.add(step.step)  # its own attempt may come yet, before what it expanded into
            step = known[step.source]
            continue
        seen.add(step.step)
        ready, started, left = _attempt(step)
        if ready is not None and started is not None:
            spells.append(Spell(step.step, started - ready, max(0.0, left - started), step.kind))
        own = step.after if step.after_own else None
        last: StepRecord | None = None
        at = 0.0
        for name in step.needs:
            need = known[name]
            if name == own or (need.state == "done" and name not in seen):
                end = _attempt(need)[2] if name in expanded else need.moves[-1][0]
                if last is None or end > at:
                    last, at = need, end
        step = known[step.owner] if last is None and step.owner is not None else last
    return tuple(reversed(spells))


def _attempt(step: StepRecord) -> tuple[float | None, float | None, float]:
    """Return when a step was last ready, when it was last sent to a worker, and when that attempt of its own ended
    (before what it expanded into; 0 if there is none)."""
    ready: float | None = None
    started: float | None = None
    left, before = 0.0, ""
    for at, state, _ in step.moves:
        if before == "running":
            left = at
        if state == "ready":
            ready = at
        elif state == "running":
            started = at
        before = state
    return ready, started, left
