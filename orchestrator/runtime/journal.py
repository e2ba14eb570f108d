"""The journal: every event and the actions that followed, in one SQLite file that only grows.

It stands between queue and machine: events are written before the machine acts on them, so they alone determine the
state; actions are written after, for comparison. Decides the file's format and how durable it is. It does not know what
events mean, and never holds a clock of its own: times are those of the events.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ..core.errors import ConfigError
from ..core.events import Action, Dispatch, Event, Expanded, event_adapter
from ..core.ir import Frozen
from .store import APPLICATION, FORMAT, check_format, claim, connect, explained

_SECRET = re.compile(r"key|token|secret|passw|credential|authorization", re.IGNORECASE)
_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE sessions (first INTEGER PRIMARY KEY, header TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT, kind TEXT NOT NULL, event TEXT NOT NULL);
CREATE TABLE actions (seq INTEGER PRIMARY KEY, actions TEXT NOT NULL);
CREATE VIEW rows AS SELECT seq, at, run, kind, event, actions FROM events LEFT JOIN actions USING (seq);
"""


class Header(Frozen):
    """What a machine has to be made with to take the events after it."""

    format: int = FORMAT
    plait: str
    """Version of this package that wrote them."""
    created: str
    """When, UTC, ISO 8601."""
    grace: float
    lease: float | None
    meta: dict[str, JsonValue] = {}
    """Whatever the writer wants to be remembered. What looks like a secret by its name is not kept."""


@dataclass(frozen=True, slots=True)
class Row:
    """One event, and the actions that followed."""

    seq: int
    at: float
    run: str | None
    """Which run it concerns, where that can be told."""
    kind: str
    event: str
    """JSON."""
    actions: str | None
    """JSON list; `None` if the writer ended before it could write them."""

    def load(self) -> Event:
        """Return the event. Raises `ConfigError` if it cannot be read."""
        try:
            return event_adapter.validate_json(self.event)
        except ValidationError:
            try:  # Python's reader takes what pydantic's does not: lone surrogates, as tools and models may write
                return event_adapter.validate_python(json.loads(self.event))
            except ValueError as error:
                detail = str(error).partition("\n")[0]
                raise ConfigError(
                    f"event {self.seq} of the journal cannot be read ({detail}): the file is damaged, or another "
                    "version of plait wrote it"
                ) from None


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
        self._acted: list[tuple[int, str]] = []
        self._runs: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self if self._db is not None else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def open(
        self, *, grace: float = 10.0, lease: float | None = None, meta: Mapping[str, JsonValue] | None = None
    ) -> Self:
        """Start a session: what is appended from here on is for a new machine with these options.

        A file that is there already keeps its sessions, and the new one comes after them.
        """
        if self._db is not None:
            raise ConfigError(f"{self.path} is open already")
        self._lock = claim(self.path)
        try:
            self._db = connect(self.path, write=True)
            with explained(self.path):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {self._synchronous}")
                if not self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                    self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            check_format(self._db, self.path)
            header = Header(
                plait=_version(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                grace=grace,
                lease=lease,
                meta=_without_secrets(dict(meta or {})),
            )
            with explained(self.path):
                self._next = self._db.execute("SELECT coalesce(max(seq), 0) + 1 FROM events").fetchone()[0]
                # A session without events is replaced: it would start where this one does.
                line = (self._next, self._hidden(header.model_dump_json()))
                self._db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", line)
        except BaseException:
            self._release()
            raise
        return self

    def append(self, events: Sequence[Event]) -> int:
        """Write events, in one transaction, and return the number of the first; the others follow it."""
        if self._db is None:
            self.open()
        first = self._next
        lines = [
            (seq, event.at, self._run_of(event), event.kind, self._hidden(_json(event)))
            for seq, event in enumerate(events, first)
        ]
        self._write(lines)
        self._next += len(lines)
        return first

    def acted(self, seq: int, actions: Sequence[Action]) -> None:
        """Note what followed from an event. Written with the next batch; what a crash loses, replay recomputes."""
        for action in actions:
            if isinstance(action, Dispatch):
                self._runs[action.job.attempt] = action.job.run
        self._acted.append((seq, self._hidden(dump(actions))))

    def flush(self) -> None:
        """Write what `acted` has noted."""
        if self._acted:
            self._write([])

    def close(self) -> None:
        """Write what is left and close the file, which is then one plain file. May be called twice."""
        if self._db is None:
            return
        try:
            self.flush()
            # Without this the file could not be read where its folder cannot be written. A reader may be in the way.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._release()

    def _write(self, lines: Sequence[tuple[int, float, str | None, str, str]]) -> None:
        assert self._db is not None
        with explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT INTO actions VALUES (?, ?)", self._acted)
                self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", lines)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
        self._acted.clear()

    def _run_of(self, event: Event) -> str | None:
        match event.kind:
            case "submitted" | "cancelled":
                return event.run
            case "expanded":
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
        """Yield all that is written, oldest first, as of now. The file may be open for writing, here or elsewhere."""
        if self._db is not None:
            self.flush()
        with contextlib.closing(connect(self.path, write=False)) as db, explained(self.path):
            check_format(db, self.path)
            expected = 1
            for line in db.execute("SELECT seq, at, run, kind, event, actions FROM rows ORDER BY seq"):
                row = Row(*line)
                if row.seq != expected:
                    raise ConfigError(f"{self.path} is damaged: event {expected} is missing")
                expected += 1
                yield row

    def events(self) -> Iterator[Event]:
        """Yield all events, oldest first."""
        return (row.load() for row in self.rows())

    def sessions(self) -> list[tuple[int, Header]]:
        """Return the number of each session's first event, and its header."""
        with contextlib.closing(connect(self.path, write=False)) as db, explained(self.path):
            check_format(db, self.path)
            lines = db.execute("SELECT first, header FROM sessions ORDER BY first").fetchall()
        try:
            return [(first, Header.model_validate_json(header)) for first, header in lines]
        except ValidationError as error:
            raise ConfigError(
                f"{self.path} is damaged: its header cannot be read ({error.errors()[0]['msg']})"
            ) from None


def dump(actions: Sequence[Action]) -> str:
    """Return actions as the JSON list that is written and compared."""
    return f"[{','.join(map(_json, actions))}]"


def _json(item: Event | Action) -> str:
    plain = item.model_dump()
    try:
        return to_json(plain, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # a lone surrogate, which UTF-8 cannot say and JSON's escapes can
        return json.dumps(plain, separators=(",", ":"))


def _run_in(event: Expanded) -> str:
    return event.step.rpartition(":")[0]


def _without_secrets(meta: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    kept: dict[str, JsonValue] = {}
    for name, value in meta.items():
        if isinstance(value, str) and _SECRET.search(name):
            value = "***"
        kept[name] = _without_secrets(value) if isinstance(value, dict) else value
    return kept


def _version() -> str:
    try:
        return importlib.metadata.version("plait")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"
