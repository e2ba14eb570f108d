"""What a run's model calls read and wrote, taken from its events while it runs or from its journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...core.events import Action, Event, Finish, Submitted
from ...core.interfaces import Plugins
from ...core.plan import Request
from ...core.record import StepRecord
from ...machine import Machine, Run, step_records
from ...runtime.attempts import Attempt, AttemptLog
from ...runtime.journal.location import Location
from ...runtime.journal.replay import history

__all__ = ["Capture", "Captured", "captured"]


@dataclass(slots=True)
class Captured:
    """One run that has ended, or as much of it as there is."""

    run: str
    request: Request
    finish: Finish | None
    steps: dict[str, StepRecord]
    """By id."""
    attempts: list[Attempt]
    """Model calls whose outcome was read, in order of their starts. Times are the machine's."""


@dataclass(slots=True)
class _Open:
    request: Request
    run: Run | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])


class Capture:
    """Follows runs: call `take` with each event that a machine has handled (`AsyncOrchestrator.watch`), and `pop` with
    the id of a run that has ended. `only`: the one run to follow; all by default."""

    def __init__(self, only: str | None = None) -> None:
        self._log = AttemptLog(only)
        self._only = only
        self._open: dict[str, _Open] = {}
        self._done: dict[str, Captured] = {}

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take note of one event and what followed."""
        if isinstance(event, Submitted) and self._only in (None, event.run):
            self._open.setdefault(event.run, _Open(event.request))
        happened = self._log.take(event, machine, actions)
        for run in happened.runs:
            if run.id in self._open:
                self._open[run.id].run = run
        for attempt in happened.ended:
            if attempt.run in self._open and attempt.op.kind == "think" and attempt.read:
                self._open[attempt.run].attempts.append(attempt)
        for finish in happened.finished:
            if finish.run in self._open:
                self._done[finish.run] = self._close(finish.run, finish)

    def pop(self, run: str) -> Captured | None:
        """Return a run that has ended (or, of a journal, been left off) and forget it; `None` for one not heard of."""
        if run in self._open:
            return self._close(run, None)
        return self._done.pop(run, None)

    def _close(self, run: str, finish: Finish | None) -> Captured:
        kept = self._open.pop(run)
        steps = {} if kept.run is None else {each.step: each for each in step_records(kept.run, 0.0)}
        attempts = sorted(kept.attempts, key=lambda each: (each.start, each.id))
        return Captured(run, kept.request, finish, steps, attempts)


def captured(path: Location | str, plugins: Plugins, runs: Sequence[str]) -> Iterator[Captured]:
    """Yield the runs of a journal, by replaying it. Raises `ConfigError` for a file that cannot be read."""
    for run in runs:
        capture = Capture(run)
        for moment in history(path, plugins, run):
            capture.take(moment.event, moment.machine, moment.actions)
            if any(isinstance(action, Finish) and action.run == run for action in moment.actions):
                break
        if (found := capture.pop(run)) is not None:
            yield found
