"""What a finished run cost and where its time went: plain data that can be printed, written and sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import JsonValue, PlainSerializer, PlainValidator

from ...core.events import Finish
from ...core.plan import Kind
from ...core.record import StepRecord
from ...core.result import Usage
from ...core.values import Frozen
from ...machine import Run, step_records


def _read(rows: Iterable[StepRecord | Mapping[str, Any]]) -> tuple[StepRecord, ...]:
    return tuple([row if isinstance(row, StepRecord) else StepRecord.read(row) for row in rows])


def _rows(steps: tuple[StepRecord, ...]) -> list[dict[str, JsonValue]]:
    return [step.row() for step in steps]


class Spell(Frozen):
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


def report(finish: Finish, run: Run | None, began: float, ended: float) -> Report:
    """Return the report of a run that ended with `finish`; `run` is `None` for one that was refused at once. Times are
    the machine's."""
    steps = step_records(run, began) if run is not None else ()
    output = run.root.output if run is not None and run.root is not None else None
    return Report(
        usage=finish.usage,
        critical_path_tokens=finish.critical_path_tokens,
        seconds=ended - began,
        waited_for=_waited_for(steps, output.id) if output is not None else (),
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
        ready, started = step.ready_at, step.started_at
        if ready is not None and started is not None:
            ran = _own_end(step, started) - started
            spells.append(Spell(step=step.step, waited=started - ready, ran=ran, kind=step.kind))
        own = step.after if step.after_own else None
        needs = [known[need] for need in step.needs]
        before = [need for need in needs if need.step == own or (need.state == "done" and need.step not in seen)]
        if not before and step.owner is not None:
            step = known[step.owner]
        else:
            step = max(before, key=lambda need: _end(need, need.step in expanded), default=None)
    return tuple(reversed(spells))


def _end(step: StepRecord, expanded: bool) -> float:
    return _own_end(step, 0.0) if expanded else step.moves[-1][0]


def _own_end(step: StepRecord, started: float) -> float:
    """Return when the step's own attempt ended (before what it expanded into)."""
    left = (move[0] for before, move in zip(step.moves, step.moves[1:], strict=False) if before[1] == "running")
    return next((at for at in left if at >= started), started)
