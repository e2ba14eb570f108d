"""The journal: every event and the actions that followed, in one SQLite file that only grows.

Events determine the machine's state. Actions stand beside them, with long texts abridged. A replay compares them. In a
file that holds only some of a machine's runs (`Header.told`), a replay follows the attempts that the actions name.
Notes serve resuming alone: calls with side effects that were about to be made, questions to people, their answers.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import reprlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import JsonValue, ValidationError

from ...core.errors import ConfigError
from ...core.events import Action, Counted, Dispatch, Event, Expanded, Finish, Pruned, Submitted
from ...machine import Refused
from .recorded import as_json, dump, event_json
from .sqlite import check_format, claim, connect, explained, packed, prepare, unpacked
from .tables import HEAD, Header, Note, Row, RunLine, is_run_line

_SECRET = re.compile(r"key|token|secret|passw|credential|authorization", re.IGNORECASE)
_MOST = 512
"""Events that are held in memory at most before they are written."""


class Journal:
    """One file, written by one process at a time and read by any number.

    Nothing happens to the file before `open` (or the first `append`, which opens with a machine's default options).
    `synchronous="normal"` survives the end of the process, "full" also that of the machine (one fsync a batch).
    No text of `secrets` is written to the file.

    All methods raise `ConfigError`, with the cause, for a file that cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["normal", "full"] = "normal",
        secrets: Iterable[str] = (),
    ) -> None:
        self.path = Path(path)
        self._synchronous = synchronous
        self._secrets = [json.dumps(secret)[1:-1] for secret in secrets if secret]
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._next = 1
        self._lines: list[tuple[int, float, str | None, str, str | bytes]] = []
        self._acted: list[tuple[int, str | bytes]] = []
        self._index: list[tuple[str, tuple[object, ...]]] = []
        self._runs: dict[int, str] = {}
        self._resumes: str | None = None

    def __enter__(self) -> Self:
        return self if self._db is not None else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Claim the file, so that nobody else writes to it until `close`."""
        if self._lock is None:
            self._lock = claim(self.path)

    @property
    def size(self) -> int:
        """Bytes written so far, including those that SQLite keeps beside the file while it is open."""
        if self._db is None:
            return 0
        with explained(self.path):
            pages = self._db.execute("PRAGMA page_count").fetchone()[0]
            return pages * self._db.execute("PRAGMA page_size").fetchone()[0]

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
        """Start a session. The events appended to it are for a new machine with these options; with `resumes` and
        `base` they are for the machine that resumes this run, as it stood after event `base`. `told` as in `Header`.

        A file that exists keeps its sessions; the new one follows them.
        """
        if self._db is not None:
            raise ConfigError(f"{self.path} is open already")
        self.hold()
        try:
            self._db = connect(self.path, write=True)
            with explained(self.path):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {self._synchronous}")
                prepare(self._db)
            check_format(self._db, self.path)
            with explained(self.path):
                self._next = self._db.execute("SELECT coalesce(max(seq), 0) + 1 FROM events").fetchone()[0]
            self._resumes = resumes
            self._begin(
                Header(
                    plait=_version(),
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
            self._release()
            raise
        return self

    def told(self, *, grace: float, lease: float | None, meta: Mapping[str, JsonValue], goes_on: bool = True) -> None:
        """Start a session in which the machine has runs that this file does not hold. With `goes_on` its machine is
        that of the last event, else a new one."""
        self.flush()
        base = self._next - 1 if goes_on and self._next > 1 else None
        created, meta = _now(), _without_secrets(meta)
        self._begin(
            Header(plait=_version(), created=created, grace=grace, lease=lease, base=base, told=True, meta=meta)
        )

    def _begin(self, header: Header) -> None:
        """Write a session's header. A session without events is replaced: it starts at the same event."""
        assert self._db is not None
        with explained(self.path):
            line = (self._next, self._hidden(header.model_dump_json()))
            self._db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", line)

    def append(self, events: Sequence[Event], *, sync: bool = False, commit: bool = True) -> int:
        """Write events, in one transaction, and return the number of the first; the others follow it.

        With `sync` they are on the disk when this returns, and survive the end of the machine too. Without `commit`
        they are kept until the next `flush`: a process that is killed before loses them.
        """
        if self._db is None:
            self.open()
        first = self._next
        for seq, event in enumerate(events, first):
            text = packed(self._hidden(event_json(event)))
            self._lines.append((seq, event.at, self._run_of(event), event.kind, text))
            if isinstance(event, Submitted):
                head = json.loads(self._hidden(json.dumps(" ".join(event.request.text[: 4 * HEAD].split()))))[:HEAD]
                values = (event.run, seq, _now(), head, event.request.planner.name)
                statement = "INSERT OR IGNORE INTO runs (run, first, created, text, planner) VALUES (?, ?, ?, ?, ?)"
                self._index.append((statement, values))
        self._next += len(events)
        if commit or sync or len(self._lines) >= _MOST:
            self._write(sync)
        return first

    def acted(self, seq: int, actions: Sequence[Action], refused: Sequence[tuple[int, Refused]] = ()) -> None:
        """Record the actions that followed from an event (`refused`: see `Machine.refused`). They are written with the
        next batch; actions that a crash loses are computed again by a replay."""
        for action in actions:
            if isinstance(action, Dispatch):
                self._runs[action.job.attempt] = action.job.run
            elif isinstance(action, Finish) and self._resumes in (None, action.run):
                values = (action.status, action.usage.completion, _now(), action.run)
                self._index.append(("UPDATE runs SET status = ?, tokens = ?, ended = ? WHERE run = ?", values))
        self._acted.append((seq, packed(dump(actions, refused, self._hidden))))

    def note(self, note: Note) -> None:
        """Write a note. The note and all events appended before it are on the disk when this returns."""
        if self._db is None:
            self.open()
        text = packed(self._hidden(as_json(note.note)))
        statement = "INSERT INTO notes (run, step, attempt, kind, note) VALUES (?, ?, ?, ?, ?)"
        self._index.append((statement, (note.run, note.step, note.attempt, note.kind, text)))
        self._write(sync=True)

    @property
    def next(self) -> int:
        """Number of the next event."""
        return self._next

    def flush(self) -> None:
        """Write what `append`, `acted` and `note` have gathered, in one transaction."""
        if self._lines or self._acted or self._index:
            self._write()

    def close(self) -> None:
        """Flush and close the file; SQLite leaves no second file beside it. May be called twice."""
        if self._db is None:
            self._release()
            return
        try:
            self.flush()
            # Without this the file could not be read where its folder cannot be written. A reader may be in the way.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._release()

    def _write(self, sync: bool = False) -> None:
        assert self._db is not None
        with explained(self.path):
            if sync and self._synchronous != "full":
                self._db.execute("PRAGMA synchronous = full")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT INTO actions VALUES (?, ?)", self._acted)
                self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", self._lines)
                for statement, values in self._index:
                    self._db.execute(statement, values)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                self._next -= len(self._lines)
                self._clear()
                raise
            finally:
                if sync and self._synchronous != "full":
                    self._db.execute("PRAGMA synchronous = normal")
        self._clear()

    def _clear(self) -> None:
        self._lines.clear()
        self._acted.clear()
        self._index.clear()

    def _run_of(self, event: Event) -> str | None:
        match event.kind:
            case "submitted" | "cancelled" | "paused":
                return event.run
            case "expanded" | "pruned" | "counted":
                return _run_in(event)
            case "progressed":
                return self._runs.get(event.attempt)
            case "succeeded" | "failed" | "stopped":
                return self._runs.pop(event.attempt, None)
            case _:
                return None

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _release(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- reading -----------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Yield all rows written so far, oldest first. The file may be open for writing, here or elsewhere."""
        if self._db is not None:
            self.flush()
        with contextlib.closing(connect(self.path, write=False)) as db, explained(self.path):
            check_format(db, self.path)
            expected = 1
            lines = db.execute("SELECT seq, at, run, kind, event, actions FROM rows ORDER BY seq")
            for seq, at, run, kind, event, actions in lines:
                try:
                    row = Row(seq, at, run, kind, unpacked(event), None if actions is None else unpacked(actions))
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"{self.path} is damaged: event {seq} cannot be read ({error})") from None
                if row.seq != expected:
                    raise ConfigError(f"{self.path} is damaged: event {expected} is missing")
                expected += 1
                yield row

    def events(self) -> Iterator[Event]:
        """Yield all events, oldest first."""
        return (row.load() for row in self.rows())

    def notes(self, run: str) -> list[Note]:
        """Return the notes of a run, oldest first."""
        select = "SELECT run, step, attempt, kind, note FROM notes WHERE run = ? ORDER BY id"
        lines = self._select("notes", select, run) or ()
        return [Note(run, step, attempt, kind, json.loads(unpacked(note))) for run, step, attempt, kind, note in lines]

    def runs(self) -> list[RunLine]:
        """Return the index of the runs, in the order of their submission. Raises `ConfigError` for a file of format 1,
        which has none."""
        select = "SELECT run, first, created, text, planner, status, tokens, ended FROM runs ORDER BY first"
        lines = self._select("runs", select)
        if lines is None:
            raise ConfigError(
                f"{self.path} has journal format 1, which has no index of its runs: `plait replay` reads it"
            )
        for line in lines:
            if not is_run_line(line):
                raise ConfigError(f"{self.path} is damaged: its index of runs holds {reprlib.repr(line)}")
        return [RunLine(*line) for line in lines]

    def _select(self, table: str, select: str, *values: object) -> list[tuple[Any, ...]] | None:
        """Read a table; return `None` for a file of format 1, which does not have it."""
        if self._db is not None:
            self.flush()
        with contextlib.closing(connect(self.path, write=False)) as db, explained(self.path):
            check_format(db, self.path)
            if not db.execute("SELECT count(*) FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0]:
                return None
            return db.execute(select, values).fetchall()

    def sessions(self) -> list[tuple[int, Header]]:
        """Return the number of each session's first event, and its header."""
        with contextlib.closing(connect(self.path, write=False)) as db, explained(self.path):
            check_format(db, self.path)
            lines = db.execute("SELECT first, header FROM sessions ORDER BY first").fetchall()
        if not all(type(first) is int for first, _ in lines):
            raise ConfigError(f"{self.path} is damaged: a session of it begins nowhere")
        try:
            return [(first, Header.model_validate_json(header)) for first, header in lines]
        except ValidationError as error:
            raise ConfigError(
                f"{self.path} is damaged: its header cannot be read ({error.errors()[0]['msg']})"
            ) from None


def _run_in(event: Expanded | Pruned | Counted) -> str:
    return event.step.rpartition(":")[0]


def _without_secrets(meta: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    kept: dict[str, JsonValue] = {}
    for name, value in meta.items():
        if isinstance(value, str) and _SECRET.search(name):
            value = "***"
        kept[name] = _without_secrets(value) if isinstance(value, dict) else value
    return kept


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version() -> str:
    try:
        return importlib.metadata.version("plait")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"
