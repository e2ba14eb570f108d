"""Attempts and steps of runs, put together from events: the one source of spans and of traces.

`AttemptLog` takes what a driver's watchers get, so it serves a live run and a replay alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..core.causes import Cause, sentence
from ..core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Failed,
    Finish,
    Progressed,
    Stopped,
    Succeeded,
    Tick,
    WorkerDown,
    WorkerUp,
)
from ..core.ops import Call, Think
from ..core.record import StepRecord
from ..core.result import Failure, Result, Usage
from ..machine import Machine, Run, moved

__all__ = ["Attempt", "AttemptLog", "Happened", "WorkerTimes"]


@dataclass(slots=True)
class Attempt:
    """One dispatch of a step to a worker."""

    id: int
    run: str
    step: str
    worker: str
    op: Think | Call
    """With its references resolved."""
    start: float
    end: float | None = None
    """`None`: it has not ended, or the journal ends before it did."""
    ending: Literal["", "succeeded", "failed", "stopped", "lost"] = ""
    placed: str = ""
    """Why on that worker, if a policy said so."""
    stopping: float | None = None
    """When the worker was told to stop it."""
    stop_cause: Cause | None = None
    stop_reason: str = ""
    """The cause in words."""
    first: float | None = None
    """When the first of its text arrived, if it streamed."""
    progress: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Time, and tokens generated until then, where that is kept."""
    texts: list[str] = field(default_factory=list[str])
    """Its text, piece by piece, where that is kept."""
    usage: Usage = field(default_factory=Usage)
    result: Result | None = None
    """What it ended in, or had when it was stopped."""
    failure: Failure | None = None
    lane: int = 0
    """A slot of the worker that nothing else held meanwhile."""

    @property
    def read(self) -> bool:
        """Whether what it generated became its step's value."""
        return self.ending == "succeeded" and self.stopping is None


@dataclass(slots=True)
class WorkerTimes:
    """One worker, and when it was there."""

    name: str
    slots: int
    serves: tuple[str, ...]
    models: tuple[str, ...] = ()
    ups: list[tuple[float, float | None]] = field(default_factory=list[tuple[float, float | None]])
    """From when until when it was there."""


@dataclass(slots=True)
class Happened:
    """What followed from one event, in the order in which it is to be told."""

    at: float
    runs: list[Run] = field(default_factory=list[Run])
    """Runs that were not known before; those that go on without having been submitted here included."""
    entered: list[StepRecord] = field(default_factory=list[StepRecord])
    ended: list[Attempt] = field(default_factory=list[Attempt])
    began: list[Attempt] = field(default_factory=list[Attempt])
    stopping: list[Attempt] = field(default_factory=list[Attempt])
    moved: list[StepRecord] = field(default_factory=list[StepRecord])
    """A record for each move. Its times are the machine's, as all times here."""
    finished: list[Finish] = field(default_factory=list[Finish])


class AttemptLog:
    """Follows runs. Call `take` with each event that the machine has handled.

    `only`: the one run to follow; all by default. `details`: whether progress and texts are kept.
    """

    def __init__(self, only: str | None = None, *, details: bool = False) -> None:
        self.only = only
        self.open: dict[int, Attempt] = {}
        """Attempts that have not ended."""
        self.workers: dict[str, WorkerTimes] = {}
        self._details = details
        self._seen: dict[str, int] = {}

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> Happened:
        """Take one event, the machine after it, and what followed; return what that means."""
        at = machine.now
        happened = Happened(at)
        moving = {move[1].partition(":")[0] for move in machine.moves}
        for run in [*machine.runs.values(), *machine.retired]:
            if self.only in (None, run.id) and (run.id in moving or self._seen.get(run.id) != len(run.nodes)):
                self._steps(run, machine, happened)
        match event:
            case Succeeded() | Failed() | Stopped() | Progressed():
                self._heard(event, happened)
            case WorkerUp():
                there = self.workers.setdefault(event.worker, WorkerTimes(event.worker, event.slots, event.serves))
                there.slots, there.models = max(there.slots, event.slots), event.models
                if not there.ups or there.ups[-1][1] is not None:
                    there.ups.append((at, None))
            case WorkerDown():
                there = self.workers.get(event.worker)
                if there is not None and there.ups and there.ups[-1][1] is None:
                    there.ups[-1] = (there.ups[-1][0], at)
            case _:
                pass
        for action in actions:
            self._acted(action, happened)
        if isinstance(event, Tick | WorkerDown):
            for attempt in [each for each in self.open.values() if each.id not in machine.attempts]:
                self._over(attempt, "lost", happened)
        return happened

    def _steps(self, run: Run, machine: Machine, happened: Happened) -> None:
        seen = self._seen.get(run.id)
        if seen is None:
            happened.runs.append(run)
        for record in moved(machine, run, seen or 0, 0.0):
            (happened.moved if record.moves else happened.entered).append(record)
        self._seen[run.id] = len(run.nodes)

    def _acted(self, action: Action, happened: Happened) -> None:
        match action:
            case Dispatch(job=job) if job.run in self._seen:
                attempt = Attempt(job.attempt, job.run, job.step, action.worker, job.op, happened.at)
                attempt.placed = action.reason
                self.open[attempt.id] = attempt
                happened.began.append(attempt)
            case Cancel() if action.attempt is not None and action.attempt in self.open:
                attempt = self.open[action.attempt]
                attempt.stopping, attempt.stop_cause = happened.at, action.cause
                attempt.stop_reason = sentence(action.cause, action.about)
                happened.stopping.append(attempt)
            case Finish() if self.only in (None, action.run):
                self._seen.pop(action.run, None)
                happened.finished.append(action)
            case _:
                pass

    def _heard(self, event: Progressed | Succeeded | Failed | Stopped, happened: Happened) -> None:
        attempt = self.open.get(event.attempt)
        if attempt is None:
            return
        if isinstance(event, Progressed):
            if self._details:
                before = attempt.progress[-1][1] if attempt.progress else 0
                attempt.progress.append((happened.at, before + event.tokens))
                attempt.texts.append(event.text)
            if attempt.first is None and event.tokens:
                attempt.first = happened.at
        elif isinstance(event, Failed):
            attempt.failure, attempt.usage = event.failure, event.usage
            self._over(attempt, "failed", happened)
        else:
            attempt.result, attempt.usage = event.result, event.result.usage
            self._over(attempt, "succeeded" if isinstance(event, Succeeded) else "stopped", happened)

    def _over(
        self, attempt: Attempt, ending: Literal["succeeded", "failed", "stopped", "lost"], happened: Happened
    ) -> None:
        del self.open[attempt.id]
        attempt.end, attempt.ending = happened.at, ending
        if attempt.progress and attempt.usage.completion < attempt.progress[-1][1]:
            attempt.usage = attempt.usage.model_copy(update={"completion": attempt.progress[-1][1]})
        happened.ended.append(attempt)
