"""Goes on with a run whose process ended: the machine as its journal leaves it, and the events that take it up again.

The machine is rebuilt from the events alone; no planner and no worker is asked about what they had said. What was under
way is then lost with the process that ran it, and tried again as after the loss of a worker, except a call that changes
the world: one that had been about to be made is not made again unless somebody says so. Decides what becomes of each
attempt; it runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import JsonValue

from ...core.errors import ConfigError, Interrupted, OutcomeUnknown
from ...core.events import (
    Cancelled,
    Dispatch,
    Event,
    Expand,
    Expanded,
    Failed,
    Finish,
    Submitted,
    Succeeded,
    Tick,
    WorkerDown,
    WorkerUp,
)
from ...core.flow import is_root
from ...core.interfaces import Plugins, Worker
from ...core.plan import Plan
from ...core.result import Result, as_failure
from ...core.states import State
from ...core.tools.context import Question
from ...machine.machine import Machine
from ...machine.records import Attempt, Node, Run
from ..driver.driver import arrival
from ..driver.expander import Expander, heard_at
from ..driver.flows import Heard
from .journal import Header, Journal, Note, dump
from .replay import Moment, history

OnUnknown = Literal["fail", "ask", "retry"]
"""What becomes of a call that changes the world and was under way when the process ended: the step fails, a person is
asked, or the call is made again."""

AGAIN, TREAT_AS_DONE, GIVE_UP = "make it again", "it was made", "fail"


@dataclass(slots=True)
class Rebuilt:
    """A run as its journal leaves it."""

    run: str
    path: Path
    machine: Machine
    header: Header
    submitted: Submitted
    last: int
    """Number of its last event."""
    dispatched: dict[int, Dispatch]
    """All dispatches of the run, by attempt."""
    notes: list[Note]
    trail: list[Heard] = field(default_factory=list["Heard"])
    """What the journal has of the run's flow, if its planner is one."""
    finish: Finish | None = None
    record: Run | None = None
    """Its records, if it has finished."""

    @property
    def answers(self) -> dict[str, JsonValue]:
        """What people have answered, by question."""
        return {note.step: note.note for note in self.notes if note.kind == "answered"}

    def follow(self, moment: Moment) -> None:
        """Take note of what one event has to do with the run's flow, if its planner is one."""
        root = self.submitted.plan.steps[0]
        if is_root(root):
            heard = heard_at(f"{self.run}:{root.name}", moment.event, moment.machine, moment.actions)
            self.trail += [heard] if heard is not None else []

    @property
    def nodes(self) -> Sequence[Node]:
        """The records of its steps."""
        record = self.record or self.machine.runs.get(self.run)
        return record.nodes if record is not None else ()


def rebuild(path: Path, run: str, plugins: Plugins) -> Rebuilt:
    """Rebuild a run from its journal. Raises `ConfigError` for a file or run that cannot be read, and where the machine
    now decides otherwise than the one that wrote it: its attempts would not be those that the journal speaks of."""
    rebuilt: Rebuilt | None = None
    machine: Machine | None = None
    dispatched: dict[int, Dispatch] = {}
    for moment in history(path, plugins, run):
        machine = moment.machine
        if moment.differs and _orders(moment.recorded) != _orders(dump(moment.actions)):
            raise ConfigError(
                f"run {run} cannot be resumed: from event {moment.seq} of {path} on this version of plait decides "
                f"otherwise than {moment.header.plait}, which wrote it (`plait replay` shows how)"
            )
        if isinstance(moment.event, Submitted) and moment.event.run == run and rebuilt is None:
            rebuilt = Rebuilt(run, path, machine, moment.header, moment.event, moment.seq, dispatched, [])
        for action in moment.actions:
            if isinstance(action, Dispatch) and action.job.run == run:
                dispatched[action.job.attempt] = action
            elif isinstance(action, Finish) and action.run == run and rebuilt is not None:
                rebuilt.finish = action
                rebuilt.record = next((each for each in machine.retired if each.id == run), None)
        if rebuilt is not None:
            rebuilt.last = moment.seq
            rebuilt.follow(moment)
            if rebuilt.finish is not None:
                break
    if rebuilt is None:
        raise ConfigError(f"{path} holds no run {run!r}")
    rebuilt.notes = Journal(path).notes(run)
    return rebuilt


def _orders(actions: str | None) -> list[list[object]]:
    """Return what of recorded actions the events after them stand on: which attempt is at which step, what is given up,
    how runs end. The rest (how a job is worded, when to be woken) may differ between versions."""
    kept = {"dispatch": ("worker",), "cancel": ("step", "attempt"), "finish": ("run", "status")}
    orders: list[list[object]] = []
    for action in cast("list[dict[str, Any]]", json.loads(actions or "[]")):
        if action["kind"] in kept:
            job = cast("dict[str, Any]", action.get("job") or {})
            fields = [action.get(name) for name in kept[action["kind"]]]
            orders.append([action["kind"], *fields, job.get("attempt"), job.get("step")])
    return orders


class Ruling(NamedTuple):
    """What becomes of the attempts that were live."""

    again: list[Dispatch]
    """Dispatches to make under their own attempts: they were never made, or may be made twice."""
    ended: list[Event]
    """News of those that are over, whatever the process was doing."""


async def rule(
    rebuilt: Rebuilt,
    workers: Collection[str],
    policy: OnUnknown,
    ask: Callable[[Question], Awaitable[JsonValue]],
) -> Ruling:
    """Decide what becomes of each call that changes the world and was live, and had perhaps been made."""
    machine, at = rebuilt.machine, rebuilt.machine.now
    intended = {note.attempt for note in rebuilt.notes if note.kind == "intent"}
    again: list[Dispatch] = []
    ended: list[Event] = []
    for attempt in list(machine.attempts.values()):
        dispatch = rebuilt.dispatched.get(attempt.id)
        if dispatch is None or not attempt.node.step.side_effects or attempt.state != "live":
            continue
        if attempt.worker.name not in workers:
            ended.append(Failed(at=at, attempt=attempt.id, failure=as_failure(_unknown(attempt, "its worker is gone"))))
        elif attempt.id not in intended:
            again.append(dispatch)
        else:
            said = AGAIN if policy == "retry" else GIVE_UP
            if policy == "ask":
                said = await ask(_question(rebuilt.run, dispatch))
            if said == AGAIN:
                again.append(dispatch)
            elif said == TREAT_AS_DONE:
                result = Result(why="taken as done by a person: what it returned is not known")
                ended.append(Succeeded(at=at, attempt=attempt.id, result=result))
            else:
                remedy = "find out, and resume with on_unknown=retry if it may be made again"
                ended.append(Failed(at=at, attempt=attempt.id, failure=as_failure(_unknown(attempt, remedy))))
    return Ruling(again, ended)


def takes_up(rebuilt: Rebuilt, workers: Sequence[Worker], expander: Expander, ruling: Ruling) -> list[Event]:
    """Return the events that make a rebuilt machine go on with its run, on these workers.

    All hosts are closed first, so that nothing starts before everything that was under way is settled. Other runs of
    the same session are left alone: in this continuation they count as given up.
    """
    machine, at = rebuilt.machine, rebuilt.machine.now
    there = {worker.name for worker in workers}
    events: list[Event] = []
    for host in machine.workers.values():
        events.append(WorkerUp(at=at, worker=host.name, slots=0, serves=host.serves))
    others = [run for run in machine.runs if run != rebuilt.run]
    events += [Cancelled(at=at, run=run, reason=f"left aside: {rebuilt.run} was resumed") for run in others]
    events += ruling.ended
    settled = {action.job.attempt for action in ruling.again}
    settled |= {event.attempt for event in ruling.ended if isinstance(event, Failed | Succeeded)}
    failure = as_failure(Interrupted("the process that ran this step ended"))
    events += [
        Failed(at=at, attempt=attempt, failure=failure) for attempt in machine.attempts if attempt not in settled
    ]
    events += _read_again(rebuilt, expander, at)
    events += [arrival(each, at) for each in workers]
    gone = [host.name for host in machine.workers.values() if host.name not in there]
    events += [WorkerDown(at=at, worker=name) for name in gone]  # last: a step for which nobody is left fails
    events.append(Tick(at=at))  # asks for the next time to be woken at
    return events


def _read_again(rebuilt: Rebuilt, expander: Expander, at: float) -> list[Event]:
    """Return what planners say of the steps that have ended and whose readers had not said everything.

    A reader is given the whole text at once, and of its patches what is there already is left out: a reader may be fed
    in pieces of any length, so it says the same.
    """
    events: list[Event] = []
    for node in rebuilt.nodes:
        if node.state is not State.EXPANDING or node.own is None:
            continue
        op = node.step.op
        if is_root(node.step) and expander.is_flow(rebuilt.run):
            action = Expand(step=node.id, attempt=node.generation, result=node.own)
            events += expander.again(action, rebuilt.machine, rebuilt.trail, at)
            continue
        said: list[Event] = []
        if op.kind == "think" and op.stream and node.own.text:
            action = Expand(step=node.id, attempt=node.generation, delta=node.own.text)
            said += expander.expand(action, rebuilt.machine, at)
        action = Expand(step=node.id, attempt=node.generation, result=node.own)
        said += expander.expand(action, rebuilt.machine, at)
        known = node.inner.names if node.inner is not None else {}
        events += [_without(each, known) if isinstance(each, Expanded) else each for each in said]
    return events


def _without(event: Expanded, known: Mapping[str, Node]) -> Expanded:
    """Return an event without the steps of its patch that are in the plan already."""
    patch = event.patch
    if patch is None or not any(step.name in known for step in patch.steps):
        return event
    new = tuple(step for step in patch.steps if step.name not in known)
    if not new and patch.output is None:
        return replace(event, patch=None)
    return replace(event, patch=Plan(steps=new, output=patch.output, budget=patch.budget))


def _unknown(attempt: Attempt, remedy: str) -> OutcomeUnknown:
    step = attempt.node.step
    tool = step.op.tool if step.op.kind == "call" else step.name
    return OutcomeUnknown(
        f"the process ended while tool {tool!r} was changing the world for {attempt.node.id}, and whether it did is "
        f"unknown: {remedy}"
    )


def _question(run: str, dispatch: Dispatch) -> Question:
    op = dispatch.job.op
    what = f"{op.tool}({', '.join(f'{key}={value!r}' for key, value in op.args.items())})" if op.kind == "call" else ""
    text = f"The process ended during {what}, a call that changes the world. Was it made?"
    name = f"{dispatch.job.step}?outcome-{dispatch.job.attempt}"
    return Question(id=name, run=run, step=dispatch.job.step, text=text, choices=(AGAIN, TREAT_AS_DONE, GIVE_UP))
