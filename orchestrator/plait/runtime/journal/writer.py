"""Routes events to journals and decides when to write them to disk.

A run's events go to the file that was open at its submission, a resumed run's events to the run's former file; events
of workers and ticks go to every file. Events are buffered briefly and written together (`Driver` flushes them). Data
needed after a kill is written at once: the intent and outcome of a call with side effects, questions to a person and
answers, the end of a run.

Most events of a run are text deltas, which cause no decision by themselves: the deltas of one attempt are written as
one event before the next decisive event, and about once a second meanwhile. A merged event gives the same machine state
as the single events. If a policy of the run reviews every event, each delta is written separately.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Concatenate, ParamSpec, TypeVar

from pydantic import JsonValue

from ...core.errors import ConfigError
from ...core.events import (
    Action,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    ForeignEvent,
    Job,
    Progressed,
    Stopped,
    Submitted,
    Succeeded,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from ...machine import Machine
from .journal import Journal, UnwrittenEvent, run_of
from .location import Location
from .recorded_actions import Refusals, of_runs
from .tables import Note
from .text_deltas import can_merge, join_actions, merge_deltas

log = logging.getLogger("plait.journal")

FLUSH_INTERVAL_S = 1.0
"""Maximum seconds that text deltas wait to be written with later events."""

P = ParamSpec("P")
T = TypeVar("T")


def _locked(method: Callable[Concatenate[Recorder, P], T]) -> Callable[Concatenate[Recorder, P], T]:
    @functools.wraps(method)
    def locked(self: Recorder, *args: P.args, **options: P.kwargs) -> T:
        with self._lock:  # pyright: ignore[reportPrivateUsage]
            return method(self, *args, **options)

    return locked


@dataclass(slots=True, eq=False)
class _File:
    """A journal that is open."""

    journal: Journal
    told: bool
    """Whether it lacks some of the machine's events (`Header.told`)."""
    shift: float = 0.0
    """Seconds by which the driver's clock is ahead of its runs'."""
    leaving: bool = False
    """Whether it closes after its last run."""
    runs: set[str] = field(default_factory=set[str])
    """Those that are not over."""
    used: bool = False
    """A run was submitted to it."""


@dataclass(slots=True, eq=False)
class JournalEntry:
    """One written event: an original event, or several merged text deltas of one attempt."""

    event: Event
    since: float
    run: str | None
    """The run that it concerns; `None`: every run."""
    seqs: list[tuple[_File, int]] = field(default_factory=list[tuple[_File, int]])
    """Location in the journals; empty before the write."""
    deltas: list[Progressed] = field(default_factory=list[Progressed])
    """Text deltas that wait to be merged into the event."""
    written: bool = False
    unhandled: int = 1
    actions: Sequence[Action] = ()
    refused: Refusals = ()


class Recorder:
    """Writes a driver's events.

    Args:
        machine: the driver's. next_file: returns an open journal for new runs to replace a full one, `None` for one
        that is not full. meta: metadata of a new session's header.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        next_file: Callable[[Journal], Journal | None] = lambda journal: None,
        meta: Callable[[], Mapping[str, JsonValue]] = dict,
    ) -> None:
        self._machine = machine
        self._next_file = next_file
        self._meta = meta
        self.failed: Callable[[Sequence[str], Exception], None] = lambda runs, error: None
        """Called with runs whose journal can no longer be written, and the error."""
        self.current: Journal | None = None
        """Journal of new runs."""
        self.files: list[_File] = []
        """Those that are open."""
        self._of: dict[str, _File] = {}
        self._attempts: dict[int, str] = {}
        """Runs of attempts that are not over."""
        self.alone: bool = True
        """The machine has seen nothing that the first file does not hold."""
        self._early: list[JournalEntry] = []
        """What came before the first file."""
        self._workers: dict[str, tuple[WorkerUp | None, WorkerDown | None]] = {}
        self._pending: dict[int, JournalEntry] = {}
        self._heard: set[int] = set()
        self._intents: set[int] = set()
        self._ended: list[str] = []
        """Runs whose end may not be on the disk yet."""
        self.lost: set[str] = set()
        """Runs whose journal can no longer be written, until the machine has ended them."""
        self.urgent: bool = False
        """Whether a run began or ended, which other processes should see: `flush` soon."""
        self.at_once: bool = False
        """Whether a run was submitted whose start is to be written before a follower gets an event of it."""
        self._lock = RLock()
        """The driver's thread for large plans and the questions of tools write concurrently."""

    # -- files ---------------------------------------------------------------------------------------------------------

    @_locked
    def use(self, journal: Journal) -> None:
        """Write new runs to an open journal. The former journal is closed after its last run ends."""
        self._write_pending()
        alone = self.alone and not self.files
        if not alone:
            self._tell()
        file = _File(journal, told=not alone)
        if not alone:
            self._say_told(journal, goes_on=False)
            for event in self._present():
                journal.acted(self._append(file, event), [])
        for older in list(self.files):
            if older.journal is self.current:
                older.leaving = True
                self._leave(older)
        self.files.append(file)
        self.current = journal
        early, self._early = self._early, []
        for entry in early:
            self._write(entry)

    @_locked
    def hold(self, run: str, journal: Journal) -> None:
        """Send the notes of a run to an open journal."""
        self._of[run] = _File(journal, told=True, leaving=True, runs={run})

    @_locked
    def adopt(self, run: str, shift: float) -> None:
        """Also send a run's events to the run's journal."""
        self._write_pending()
        self._tell()
        file = self._of[run]
        file.shift = shift
        self.files.append(file)

    @_locked
    def drop(self, run: str) -> None:
        """Close the journal of a run that is not adopted after all."""
        file = self._of.pop(run, None)
        if file is not None:
            file.journal.close()

    def _tell(self) -> None:
        """Record in every file that from now on the machine has runs of another file."""
        self.alone = False
        self._early.clear()
        for file in self.files:
            if not file.told:
                file.told = True
                self._say_told(file.journal)

    def _say_told(self, journal: Journal, goes_on: bool = True) -> None:
        journal.told(grace=self._machine.cancel_timeout, lease=self._machine.lease, meta=self._meta(), goes_on=goes_on)

    def _present(self) -> Iterator[Event]:
        """Yield events that describe the workers to a new machine."""
        for up, down in self._workers.values():
            yield from (replace(event, at=self._machine.now) for event in (up, down) if event is not None)

    def _leave(self, file: _File) -> None:
        if file.leaving and not file.runs:
            self.files = [other for other in self.files if other is not file]
            file.journal.close()

    def _broke(self, file: _File, error: Exception) -> None:
        """Abandon a file that cannot be written, and its runs."""
        self.files = [other for other in self.files if other is not file]
        if file.journal is self.current:
            self.current = None
        self.alone = False
        self.lost |= file.runs
        for run in file.runs:
            self._of.pop(run, None)
        try:
            file.journal.give_up()
        except Exception as again:
            log.debug("%s: %s", file.journal.path, again)
        self.failed(sorted(file.runs), error)

    # -- events --------------------------------------------------------------------------------------------------------

    @_locked
    def take_one(self, event: Event) -> JournalEntry | UnwrittenEvent | None:
        """Write one event. Return an entry, to which actions are added later; `None` if no file needs it."""
        if isinstance(event, Succeeded) and event.attempt not in self._intents:  # no write is due at once
            run = self._attempts.get(event.attempt, "")
            if (file := self._only_file(run)) is not None:
                del self._attempts[event.attempt]
                if self._heard:
                    self._heard.discard(event.attempt)
                return self._enter(file, run, file.journal.enter_end, event, run)
        if isinstance(event, WorkerUp):
            self._workers[event.worker] = (event, None)
        elif isinstance(event, WorkerDown):
            self._workers[event.worker] = (self._workers.get(event.worker, (None, None))[0], event)
        if isinstance(event, Submitted):
            self._submitted(event.run)
            if (file := self._only_file(event.run)) is not None:
                return self._enter(file, event.run, file.journal.enter, event)
        if not self.files:
            if not self.alone:
                return None
            self._early.append(JournalEntry(event, event.at, None))
            return self._early[-1]
        if isinstance(event, Progressed):
            return self._heard_of(event)
        if self._pending:
            self._write_pending()
        run = run_of(event, self._attempts, "")
        if run is not None and run not in self._of and not self.alone:
            return None
        entry = JournalEntry(event, event.at, run)
        sync = False
        if isinstance(event, Succeeded | Failed | Stopped):
            sync = event.attempt in self._intents
            self._intents.discard(event.attempt)
            self._heard.discard(event.attempt)
        self._write(entry, sync)
        return entry

    @_locked
    def acted(
        self, entry: JournalEntry | UnwrittenEvent | None, actions: Sequence[Action], refused: Refusals = ()
    ) -> None:
        """Note what followed from one of an entry's events."""
        if not self.files and entry is None:
            return
        for action in actions:
            if isinstance(action, Dispatch):
                job = action.job
                if job.run in self._of:
                    self._attempts[job.attempt] = job.run
            elif isinstance(action, Finish) and action.run in self._of:
                self._ended.append(action.run)
                self.urgent = True
        if isinstance(entry, UnwrittenEvent):
            file = self._of.get(entry.run or "")
            if file is not None:
                file.journal.followed(entry, actions, refused)
        elif entry is None:
            if not self.alone:
                self._record_foreign_actions(actions, refused, (), self._machine.now)
        else:
            entry.unhandled -= 1
            if refused:
                before = len(entry.actions)
                entry.refused = [*entry.refused, *((index + before, order) for index, order in refused)]
            entry.actions = (
                join_actions(entry.actions, actions) if entry.actions and actions else actions or entry.actions
            )
            if not entry.written and any(not isinstance(action, Expand | WakeAt) for action in actions):
                self._write_pending()  # other files must not contain an attempt before its dispatch
            elif not entry.unhandled and entry.written:
                self._acted(entry)

    @_locked
    def intent(self, job: Job) -> bool:
        """Write to disk that a call with side effects is about to start. Return `False` if the write fails: then the
        call must not start."""
        file = self._of.get(job.run)
        if file is None:  # where its journal is lost, another process may run it now and make the call itself
            return job.run not in self.lost
        self._intents.add(job.attempt)
        note = Note(job.run, job.step, job.attempt, "intent", job.op.model_dump(mode="json"))
        self._guarded(file, job.run, file.journal.note, note)
        return job.run in self._of

    @_locked
    def path(self, run: str) -> Location | None:
        """Return the journal of a run that is written down."""
        file = self._of.get(run)
        return None if file is None else file.journal.path

    @_locked
    def note(self, run: str, step: str, kind: str, value: JsonValue) -> bool:
        """Write a note of a run. Return `False` if its journal can no longer be written."""
        file = self._of.get(run)
        if file is not None:
            self._guarded(file, run, file.journal.note, Note(run, step, None, kind, value))
        return run not in self.lost

    @_locked
    def flush(self) -> None:
        """Write all pending data."""
        self.urgent = self.at_once = False
        for file in list(self.files):
            self._guarded(file, None, file.journal.flush)
            while file.journal.failed:
                self._unwritten(file, *file.journal.failed.pop())
        ended, self._ended = self._ended, []
        for run in ended:
            file = self._of.pop(run, None)
            if file is not None:
                file.runs.discard(run)
                self._leave(file)

    @_locked
    def close(self) -> None:
        """Write all pending data and close the journals."""
        self._write_pending()
        for file in {id(open_file): open_file for open_file in [*self.files, *self._of.values()]}.values():
            file.journal.close()
        self.files.clear()
        self._of.clear()
        self.current = None

    # -- their parts ---------------------------------------------------------------------------------------------------

    def _submitted(self, run: str) -> None:
        if self.current is None:
            if self.alone:
                self.alone = False  # it is written nowhere
                self._early.clear()
            return
        file = next(file for file in self.files if file.journal is self.current)
        try:
            following = self._next_file(self.current) if file.used else None
        except ConfigError as error:
            log.warning("new runs are written to %s, large as it is: %s", self.current.path, error)
            following = None
        if following is not None:
            self.use(following)
            file = next(file for file in self.files if file.journal is following)
        if run not in self._of:
            self._of[run] = file
            file.runs.add(run)
            file.used = True
            self.urgent = True

    def _only_file(self, run: str) -> _File | None:
        """Return a run's file if it holds all runs and nothing waits to be written before."""
        file = self._of.get(run)
        return None if file is None or file.shift or self._pending or not self.alone else file

    def _enter(
        self, file: _File, run: str, enter: Callable[P, UnwrittenEvent], *a: P.args, **k: P.kwargs
    ) -> UnwrittenEvent | None:
        try:
            return enter(*a, **k)
        except Exception as error:
            self._unwritten(file, run, error)
            return None

    def _heard_of(self, event: Progressed) -> JournalEntry | None:
        reviewed = self._machine.is_reviewed(event.attempt)
        if reviewed is None:  # late: the machine only counts it
            return None
        run = self._attempts.get(event.attempt)
        if run is None:
            return None
        held = self._pending.pop(event.attempt, None)
        if event.attempt not in self._heard or reviewed:
            self._heard.add(event.attempt)
            if held is not None:
                self._write(held)
            entry = JournalEntry(event, event.at, run)
            self._write(entry)
            return entry
        if held is not None and can_merge(held.deltas[-1], event):
            held.deltas.append(event)
            held.unhandled += 1
        else:
            if held is not None:
                self._write(held)
            held = JournalEntry(event, event.at, run, deltas=[event])
        if event.at - held.since >= FLUSH_INTERVAL_S:
            self._write(held)
        else:
            self._pending[event.attempt] = held
        return held

    def _write_pending(self) -> None:
        pending, self._pending = list(self._pending.values()), {}
        for entry in pending:
            self._write(entry)

    def _write(self, entry: JournalEntry, sync: bool = False) -> None:
        entry.written = True
        if len(entry.deltas) > 1:
            entry.event = merge_deltas(entry.deltas[-1].at, entry.deltas[-1].attempt, entry.deltas)
        file = self._of.get(entry.run) if entry.run is not None else None
        for target in (file,) if file is not None else list(self.files):
            try:
                entry.seqs.append((target, self._append(target, entry.event, sync)))
            except Exception as error:
                self._unwritten(target, entry.run, error)
        if not entry.unhandled:
            self._acted(entry)

    def _append(self, file: _File, event: Event, sync: bool = False) -> int:
        if file.shift:
            event = replace(event, at=event.at - file.shift)
        return file.journal.append([event], sync=sync, commit=False)

    def _acted(self, entry: JournalEntry) -> None:
        moved = {move[1].rpartition(":")[0] for move in self._machine.moves} if entry.run is None else ()
        for file, seq in entry.seqs:
            actions, refused = self._of_file(file, entry.actions, entry.refused)
            try:
                file.journal.acted(seq, actions, refused, moved)
            except Exception as error:
                self._unwritten(file, entry.run, error)
        if not self.alone:
            self._record_foreign_actions(entry.actions, entry.refused, [file for file, _ in entry.seqs], entry.event.at)

    def _record_foreign_actions(
        self, actions: Sequence[Action], refused: Refusals, besides: Sequence[_File], at: float
    ) -> None:
        """Write an event's actions for runs in files without the event."""
        if not refused and not any(not isinstance(action, WakeAt) for action in actions):
            return
        for file in list(self.files):
            if file.told and file not in besides:
                own, orders = self._of_file(file, actions, refused)
                if own or orders:
                    self._guarded(file, None, self._record_foreign, file, own, orders, at)

    def _record_foreign(self, file: _File, actions: Sequence[Action], refused: Refusals, at: float) -> None:
        file.journal.acted(self._append(file, ForeignEvent(at=at)), actions, refused)

    def _of_file(self, file: _File, actions: Sequence[Action], refused: Refusals) -> tuple[Sequence[Action], Refusals]:
        """Return the part of a machine's actions that concerns a file's runs."""
        return of_runs(file.runs, actions, refused) if file.told else (actions, refused)

    def _guarded(self, file: _File, run: str | None, write: Callable[P, object], *a: P.args, **k: P.kwargs) -> None:
        """Run a write. An unwritable file ends the file's runs; an unwritable value ends only its own run."""
        try:
            write(*a, **k)
        except Exception as error:
            self._unwritten(file, run, error)

    def _unwritten(self, file: _File, run: str | None, error: Exception) -> None:
        if run in file.runs and not isinstance(error, ConfigError):
            log.error("run %s cannot be written to %s: %s", run, file.journal.path, error)
            self._of.pop(run, None)
            self.lost.add(run)
            file.runs.discard(run)
            self.failed([run], error)
            return
        log.error("%s cannot be written: %s", file.journal.path, error)
        self._broke(file, error)
