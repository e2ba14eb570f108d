"""What a run's model calls read and wrote, taken from its events while it runs or from its journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ...core.errors import ConfigError, PlaitError
from ...core.events import Action, Event, Finish, Submitted
from ...core.interfaces import Plugins
from ...core.record import StepRecord
from ...core.request import Request
from ...machine import Machine, Run, step_records
from ...runtime.attempts import Attempt, AttemptLog
from ...runtime.journal.directory import RunEntry
from ...runtime.journal.replay import histories

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
    the id of a run that has ended. `only`: the runs to follow; all by default."""

    def __init__(self, only: Collection[str] | None = None) -> None:
        self._log = AttemptLog(next(iter(only)) if only is not None and len(only) == 1 else None)
        self._only = None if only is None else frozenset(only)
        self._open: dict[str, _Open] = {}
        self._done: dict[str, Captured] = {}

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take note of one event and what followed."""
        if isinstance(event, Submitted) and (self._only is None or event.run in self._only):
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


def captured(entries: Iterable[RunEntry], plugins: Plugins, failed: Callable[[PlaitError], None]) -> Iterator[Captured]:
    """Yield runs of journals, by replaying these: each journal about once, however many of its runs are wanted.
    `failed` is told of each run that cannot be read."""
    for path, together in groupby(entries, key=lambda entry: entry.path):
        left = {entry.run for entry in together}
        try:
            for several, moments in histories(path, plugins, left):
                capture = Capture(several)
                waiting = set(several)
                for moment in moments:
                    capture.take(moment.event, moment.machine, moment.actions)
                    for action in moment.actions:
                        if isinstance(action, Finish) and action.run in waiting:
                            waiting.discard(action.run)
                            left.discard(action.run)
                            if (found := capture.pop(action.run)) is not None:
                                yield found
                    if not waiting:
                        break
                for run in sorted(waiting):
                    left.discard(run)
                    if (found := capture.pop(run)) is not None:
                        yield found
            if left:
                raise ConfigError(f"{path} does not hold all the runs that its index names: the file is damaged")
        except PlaitError as error:
            for _ in left:
                failed(error)
