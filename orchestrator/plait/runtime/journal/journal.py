"""The journal: an append-only record of every event, in one SQLite file or in PostgreSQL.

Events determine the machine's state. Of the actions, the journal keeps only the parts that later events depend on
(`recorded_actions.dump`): a replay computes the actions again and compares. If the replay covers only some of a
machine's runs (the journal holds no others, `Header.told`, or one was selected), the machine follows the recorded
attempts. Notes are only for resumes: calls with side effects before their start, questions to people, answers.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue, ValidationError

from ...core.errors import ConfigError
from ...core.events import Action, Dispatch, Event, Finish, ForeignEvent, Succeeded
from .location import Database, Location, located
from .recorded_actions import Refusals, as_json, dump, event_json, of_run, run_in
from .sqlite import LONG, SqliteFile, packed, unpacked
from .tables import (
    HEAD,
    EventLine,
    EventRow,
    Header,
    Note,
    NoteRow,
    RunLine,
    WriteBatch,
    demand_format,
    is_run_line,
)

if TYPE_CHECKING:
    from .postgres import PostgresPart

_SECRET = re.compile(r"key|token|secret|passw|credential|authorization", re.IGNORECASE)
_MOST = 512
"""Maximum number of unwritten events in memory."""
BYTES_BY_TENANT: Counter[str] = Counter()
"""Approximate bytes that this process has written to journals, by tenant."""


@dataclass(slots=True, eq=False)
class UnwrittenEvent:
    """An unwritten event and its actions. A whole batch is serialized at once, which takes half the time of single
    events between other work."""

    seq: int
    run: str | None
    event: Event | None
    """`None`: it is written already, its actions are not."""
    actions: Sequence[Action] | None = None
    refused: Refusals = ()
    moved: Iterable[str] = ()
    written: bool = False


class Journal:
    """One journal, a file or part of a PostgreSQL store, with one writing process at a time and any number of readers.

    `open` (or the first `append`, with a machine's default options) makes the first change. What is written
    survives the end of the process, and with `sync` also a crash of the machine. The journal never contains a text of
    `secrets`.

    All methods raise `ConfigError`, with the cause, for a journal that cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str] | Database, *, secrets: Iterable[str] = ()) -> None:
        self._storage = storage(located(path))
        self._secrets = [json.dumps(secret)[1:-1] for secret in secrets if secret]
        self._next, self._size = 1, 0
        self._events: list[UnwrittenEvent] = []
        self._later: list[UnwrittenEvent] = []
        """Actions of events that are written."""
        self.failed: list[tuple[str | None, Exception]] = []
        """Runs with an event that could not be serialized, and the error, for the writer."""
        self._runs: dict[int, str] = {}
        self._tenants: dict[str, str] = {}
        """Tenants of the runs that have begun and not ended."""
        self._resumes: str | None = None

    def __enter__(self) -> Self:
        return self if self._storage.is_open else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> Location:
        """Location. A new journal of a store gets its number in `open`."""
        return self._storage.location

    # -- writing -----------------------------------------------------------------------------------------------------

    def hold(self, run: str | None = None) -> None:
        """Claim the journal for writing until `close`; with `run`, to resume that run. In a store, only this run is
        claimed, and `path` is then another journal that begins with this journal's events."""
        self._storage.hold(run)

    @property
    def size(self) -> int:
        """Bytes written so far, about."""
        return self._size

    def open(
        self,
        *,
        grace: float = 10.0,
        lease: float | None = None,
        meta: Mapping[str, JsonValue] | None = None,
        resumes: str | None = None,
        base: int | None = None,
        told: bool = False,
    ) -> Self:
        """Start a session. Its events are for a new machine with these options; with `resumes` and `base`, they are for
        the machine that resumes this run from its state after event `base`. `told` as in `Header`.

        An existing journal keeps its sessions; the new session follows them.
        """
        if self._storage.is_open:
            raise ConfigError(f"{self.path} is open already")
        try:
            self._next, self._size = self._storage.open(), self._storage.size
            self._resumes = resumes
            self._begin(
                Header(
                    plait=version(),
                    created=_now(),
                    grace=grace,
                    lease=lease,
                    resumes=resumes,
                    base=base,
                    told=told,
                    meta=_without_secrets(dict(meta or {})),
                )
            )
        except BaseException:
            self._storage.close()
            raise
        return self

    def told(self, *, grace: float, lease: float | None, meta: Mapping[str, JsonValue], goes_on: bool = True) -> None:
        """Start a session in which the machine has runs that this journal does not hold. With `goes_on` its machine is
        that of the last event, else a new one."""
        self.flush()
        base = self._next - 1 if goes_on and self._next > 1 else None
        created, meta = _now(), _without_secrets(meta)
        self._begin(Header(plait=version(), created=created, grace=grace, lease=lease, base=base, told=True, meta=meta))

    def _begin(self, header: Header) -> None:
        self._storage.begin(self._next, self._hidden(header.model_dump_json()))

    def append(self, events: Sequence[Event], *, sync: bool = False, commit: bool = True) -> int:
        """Write events in one transaction, and return the number of the first; numbers are consecutive.

        With `sync`, the events are on the disk when this returns, and survive a crash of the machine. Without `commit`,
        they stay in memory until the next `flush`: a killed process loses these events.
        """
        if not self._storage.is_open:
            self.open()
        first = self._next
        for event in events:
            self.enter(event)
        if commit or sync:
            self._write(sync)
            if commit and self.failed:
                raise self.failed.pop()[1]
        return first

    def enter(self, event: Event) -> UnwrittenEvent:
        """Keep one event in memory until the next `flush`; its actions may be added until then."""
        return self._keep(event, self._run_of(event))

    def enter_end(self, event: Succeeded, run: str) -> UnwrittenEvent:
        """Do the same with the end of an attempt of a run."""
        self._runs.pop(event.attempt, None)
        return self._keep(event, run)

    def _keep(self, event: Event, run: str | None) -> UnwrittenEvent:
        if len(self._events) >= _MOST:
            self._write()
        kept = UnwrittenEvent(self._next, run, event)
        self._events.append(kept)
        self._next += 1
        return kept

    def acted(self, seq: int, actions: Sequence[Action], refused: Refusals = (), moved: Iterable[str] = ()) -> None:
        """Record the actions of an event (`refused`: see `Machine.refused`), and the other runs that `moved`. The next
        batch writes the actions; a replay recomputes actions lost in a crash."""
        place = seq - self._events[0].seq if self._events else -1
        if place < 0:
            self._later.append(UnwrittenEvent(seq, None, None))
        self.followed(self._events[place] if place >= 0 else self._later[-1], actions, refused, moved)

    def followed(
        self, event: UnwrittenEvent, actions: Sequence[Action], refused: Refusals = (), moved: Iterable[str] = ()
    ) -> None:
        """Record the actions that followed from an event that was entered."""
        for action in actions:
            if isinstance(action, Dispatch):
                self._runs[action.job.attempt] = action.job.run
        if event.written:
            event = UnwrittenEvent(event.seq, None, None)
            self._later.append(event)
        # Copy the list: it is written later, and the machine may still append refusals.
        event.actions, event.refused, event.moved = actions, tuple(refused), tuple(moved)

    def note(self, note: Note) -> None:
        """Write a note. The note and all events appended before it are on the disk when this returns."""
        if not self._storage.is_open:
            self.open()
        text = packed(self._hidden(as_json(note.note)))
        BYTES_BY_TENANT[self._tenants.get(note.run, "")] += len(text)
        self._write(sync=True, notes=[(note.run, note.step, note.attempt, note.kind, text)])

    @property
    def next(self) -> int:
        """Number of the next event."""
        return self._next

    def flush(self) -> None:
        """Write all pending events, actions and notes in one transaction."""
        if self._events or self._later:
            self._write()

    def close(self) -> None:
        """Flush and close. May be called twice."""
        try:
            if self._storage.is_open:
                self.flush()
        finally:
            self._storage.close()

    def give_up(self) -> None:
        """Close a journal that cannot be written. The failure of its runs is recorded as soon as writing works."""
        try:
            self._storage.give_up()
        finally:
            self._storage.close()

    def _write(self, sync: bool = False, notes: Sequence[NoteRow] = ()) -> None:
        kept, later, self._events, self._later = self._events, self._later, [], []
        batch = WriteBatch(_now(), notes=[*notes])
        for event in kept:
            batch.events.append(self._row_of(event, batch))
            event.written = True
        for event in later:
            batch.actions.append((self._actions_of(event, batch), event.seq))
        try:
            self._storage.write(batch, sync)
        except BaseException:
            self._next -= len(kept)
            raise

    def _row_of(self, kept: UnwrittenEvent, batch: WriteBatch) -> EventLine:
        """Return an event's row; add its other data to the batch."""
        seq, run, event = kept.seq, kept.run, kept.event
        assert event is not None
        try:
            text = event_json(event)
            if self._secrets:
                text = self._hidden(text)
            body = packed(text) if len(text) >= LONG else text
        except Exception as error:  # a value that cannot be written ends only its own run
            self.failed.append((run, error))
            event, body = ForeignEvent(at=event.at), event_json(ForeignEvent(at=event.at))
        if event.kind == "submitted":
            request = event.request
            head = " ".join(request.text[: 4 * HEAD].split())
            if self._secrets:
                head = json.loads(self._hidden(json.dumps(head)))
            batch.begun.append((event.run, seq, batch.now, head[:HEAD], request.planner.name, request.fairness_group))
            self._tenants[event.run] = request.tenant
        tenant = self._tenants.get(run or "", "")
        actions = None if kept.actions is None else self._actions_of(kept, batch)
        size = len(body) + len(actions or "")
        self._size += size
        BYTES_BY_TENANT[tenant] += size
        return seq, event.at, run, event.kind, body, actions

    def _actions_of(self, kept: UnwrittenEvent, batch: WriteBatch) -> str:
        """Return an event's serialized actions; add ended runs, and other runs affected by the actions, to the
        batch."""
        actions, own = kept.actions or (), kept.run
        concerned = set(kept.moved)
        for action in actions:
            if isinstance(action, Dispatch):
                if action.job.run != own:
                    concerned.add(action.job.run)
                continue
            run = run_in(action)
            if run != own:
                concerned.add(run)
            if isinstance(action, Finish) and self._resumes in (None, run):
                batch.ended.append((action.status, action.usage.completion, batch.now, run))
                self._tenants.pop(run, None)
        if kept.refused:
            concerned |= {order.step.rpartition(":")[0] for _, order in kept.refused}
        if concerned:
            batch.marks += [(run, kept.seq) for run in concerned if run and run != own]
        if not actions and not kept.refused:
            return "[]"
        return dump(actions, kept.refused, self._hidden if self._secrets else str)

    def _run_of(self, event: Event) -> str | None:
        if event.kind in ("tick", "cache-changed", "elsewhere"):
            return ""
        return run_of(event, self._runs, self._resumes or "")

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    # -- reading -----------------------------------------------------------------------------------------------------

    def rows(self, after: int = 0) -> Iterator[EventRow]:
        """Yield the rows written after number `after`, oldest first. A process may have the journal open for
        writing."""
        if self._storage.is_open:
            self.flush()
        expected = after + 1
        for row in map(self._row, self._storage.rows(after)):
            if row.seq != expected:
                raise ConfigError(f"{self.path} is damaged: event {expected} is missing")
            expected += 1
            yield row

    def rows_of(self, run: str, after: int = 0) -> Iterator[EventRow]:
        """Yield the rows of a run by index, each with the run's actions: the run's own events, events of workers, and
        events of other runs that affected the run (`EventRow.foreign`)."""
        if self._storage.is_open:
            self.flush()
        for row in map(self._row, self._storage.rows_of(run, after)):
            yield replace(row, actions=of_run(row.actions, run), foreign=row.run not in (run, None))

    def _row(self, columns: tuple[Any, ...]) -> EventRow:
        seq, at, run, kind, event, actions = columns
        try:
            return EventRow(seq, at, run, kind, unpacked(event), None if actions is None else unpacked(actions))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.path} is damaged: event {seq} cannot be read ({error})") from None

    @property
    def last(self) -> int:
        """Number of the last event that is written."""
        if self._storage.is_open:
            self.flush()
        return self._storage.last()

    def events(self) -> Iterator[Event]:
        """Yield all events, oldest first."""
        return (row.load() for row in self.rows())

    def notes(self, run: str) -> list[Note]:
        """Return the notes of a run, oldest first."""
        if self._storage.is_open:
            self.flush()
        lines = self._storage.notes(run)
        return [Note(run, step, attempt, kind, json.loads(unpacked(note))) for run, step, attempt, kind, note in lines]

    def runs(self) -> list[RunLine]:
        """Return the index of the runs, in the order of their submission."""
        return self.newest()[::-1]

    def newest(self, before: int | None = None, like: str = "", most: int = -1) -> list[RunLine]:
        """Return at most `most` lines of the index, newest first: runs submitted before an event, with the id prefix
        `like`."""
        if self._storage.is_open:
            self.flush()
        lines = self._storage.runs(before, like, most)
        for line in lines:
            if not is_run_line(line):
                raise ConfigError(f"{self.path} is damaged: its index of runs holds {reprlib.repr(line)}")
        return [RunLine(*line) for line in lines]

    def count(self) -> int:
        """Return the number of its runs."""
        if self._storage.is_open:
            self.flush()
        return self._storage.count()

    def sessions(self) -> list[tuple[int, Header]]:
        """Return the number of each session's first event, and its header."""
        lines = self._storage.sessions()
        if not all(type(first) is int for first, _ in lines):
            raise ConfigError(f"{self.path} is damaged: a session of it begins nowhere")
        try:
            headers = [(first, Header.model_validate_json(header)) for first, header in lines]
        except ValidationError as error:
            raise ConfigError(
                f"{self.path} is damaged: its header cannot be read ({error.errors()[0]['msg']})"
            ) from None
        for _, header in headers:
            demand_format(header.format, self.path)
        return headers


def storage(location: Location) -> SqliteFile | PostgresPart:
    """Return the storage for a location; its methods raise `ConfigError`, and its texts are `packed`."""
    if isinstance(location, Path):
        return SqliteFile(location)
    from .postgres import PostgresPart  # psycopg is an extra

    return PostgresPart(location)


def run_of(event: Event, attempts: dict[int, str], default: str) -> str | None:
    """Return the run of an event, `None` if it concerns all. `attempts`: runs of the attempts that have not ended."""
    match event.kind:
        case "submitted" | "cancelled" | "paused" | "limited":
            return event.run
        case "expanded" | "pruned" | "counted":
            return event.step.rpartition(":")[0]
        case "progressed":
            return attempts.get(event.attempt, default)
        case "succeeded" | "failed" | "stopped":
            return attempts.pop(event.attempt, default)
        case _:
            return None


def _without_secrets(meta: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    kept: dict[str, JsonValue] = {}
    for name, value in meta.items():
        if isinstance(value, str) and _SECRET.search(name):
            value = "***"
        kept[name] = _without_secrets(value) if isinstance(value, dict) else value
    return kept


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def version() -> str:
    """Return the version of this package."""
    try:
        return importlib.metadata.version("plait")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"
