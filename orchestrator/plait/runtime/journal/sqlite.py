"""A journal in an SQLite file with one writer and any number of readers.

A file may be untrusted. Before a read, its tables must be exactly those of a journal (a view in place of a table could
compute endlessly). Values have a maximum length, packed and unpacked, and the file's size limits the number of SQLite
steps of a read.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, RunTaken
from .tables import FORMAT, WriteBatch, demand_format

APPLICATION = 0x706C6974  # "plit", in SQLite's own header: identifies plait's files
SCHEMA = """
CREATE TABLE sessions (first INTEGER PRIMARY KEY, header TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT, kind TEXT NOT NULL, event TEXT NOT NULL, actions TEXT
);
CREATE INDEX events_of_run ON events (run);
CREATE TABLE marks (run TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (run, seq)) WITHOUT ROWID;
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, step TEXT NOT NULL, attempt INTEGER, kind TEXT NOT NULL, note TEXT
);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, first INTEGER NOT NULL, created TEXT NOT NULL, text TEXT NOT NULL, planner TEXT NOT NULL,
    status TEXT, tokens INTEGER NOT NULL DEFAULT 0, ended TEXT
);
CREATE INDEX runs_in_order ON runs (first);
CREATE INDEX notes_of_run ON notes (run);
"""
"""Machines do not read notes (intents, questions, answers); `runs` is an index of the runs. An event of `run` may
concern further runs, listed in `marks`. Events without a run (events of workers) concern all runs. Ticks and cache
events have the run '' and concern the runs that they affect."""
_BEGUN = "INSERT OR IGNORE INTO runs (run, first, created, text, planner) VALUES (?, ?, ?, ?, ?)"
_MAGIC = b"SQLite format 3\0"
LONG = 4096  # minimum bytes of a compressed text: prompts and token ids are repetitive
CHECKPOINT_PAGES = 4000
"""Pages of 4 KiB that SQLite writes before it copies them into the file and syncs it, which blocks the event loop."""
LARGEST = 128 << 20
"""Bytes of one value, unpacked."""
_STEPS = 20_000_000
"""Limit of SQLite's virtual machine steps per read of any file; the next constant adds steps per byte, since a row has
at least a few bytes and takes a few steps."""
_STEPS_A_BYTE = 4
_CHECK_STEPS = 100_000
_PATIENCE = 0.5  # seconds to wait for a claim: a process that checks a file's claim holds it briefly


@contextlib.contextmanager
def explain_errors(path: Path) -> Generator[None]:
    """Turn an error of SQLite into a `ConfigError` with advice."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise RunTaken(f"{path} was written by another process at the same time: {error}") from None
    except sqlite3.OperationalError as error:
        code: int | None = getattr(error, "sqlite_errorcode", None)
        if code is None:  # Python's own, for a text that is not UTF-8
            raise ConfigError(f"{path} is not a journal, or is damaged: {error}") from None
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):  # the rest of it says how
            raise ConfigError(f"{path} is locked by another program; close it, or write to another file") from None
        if code == sqlite3.SQLITE_INTERRUPT:
            raise ConfigError(f"{path} is not a journal, or is damaged: reading it does not end") from None
        raise ConfigError(f"{path} cannot be used: {error}; check space and permissions there") from None
    except sqlite3.DataError:
        raise ConfigError(f"{path} holds a value of more than {LARGEST >> 20} MiB: it is not read") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a journal, or is damaged: {error}") from None


def claim(path: Path) -> int:
    """Claim the file for writing; create a missing file, readable only by its owner, because it holds prompts.

    Return a file descriptor, which holds the claim until it is closed.
    """
    _demand_file(path)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the journal {path} cannot be written: {error.strerror}") from None
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.02)
                continue
            os.close(handle)
            raise ConfigError(f"{path} is being written by another run; give each its own journal") from None
        except OSError:  # a file system without such locks
            pass
        return handle


def claimed(path: Path) -> bool:
    """Return whether a process is writing the file now."""
    if not path.is_file():  # opening a pipe would wait for its other end
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def prepare(db: sqlite3.Connection) -> None:
    """Give an empty file its tables."""
    head = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};"
    db.executescript(f"BEGIN IMMEDIATE; {head} {SCHEMA} COMMIT;")


def packed(text: str) -> str | bytes:
    """Return a text's stored form, compressed if long. Raises `ValueError` for a text too long to be read."""
    if len(text) < LONG:
        return text
    data = text.encode()
    if len(data) > LARGEST:
        raise ValueError(f"a value of {len(data) >> 20} MiB is more than a journal keeps ({LARGEST >> 20})")
    return zlib.compress(data, 6)


def unpacked(kept: str | bytes) -> str:
    """Return a text that was `packed`. Raises `ValueError` if it is damaged, or longer than `LARGEST`."""
    if isinstance(kept, str):
        return kept
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(kept, LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if stream.unconsumed_tail or not stream.eof:
        raise ValueError(f"it is cut off, or has more than {LARGEST >> 20} MiB unpacked")
    return data.decode()


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """Open a file that is there, for writing or reading."""
    _demand_file(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"the journal {path} cannot be read: {error.strerror}") from None
    if start != _MAGIC and (start or not write):
        raise ConfigError(f"{path} is not a journal: it is {'no SQLite file' if start else 'empty'}")
    # The first reader repairs a file after a crash, and therefore must be able to write.
    writable = write or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    with explain_errors(path):
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}",
            uri=True,
            timeout=5.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
            db.execute("PRAGMA trusted_schema = OFF")
            if not write:
                db.set_progress_handler(_bounded(path), _CHECK_STEPS)
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error:
            db.close()
            raise
    return db


def _bounded(path: Path) -> Callable[[], bool]:
    """Return the progress handler by which SQLite checks the time limit."""
    sizes = [file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()]
    left = (_STEPS + _STEPS_A_BYTE * sum(sizes)) // _CHECK_STEPS

    def over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return over


@functools.cache
def _tables() -> frozenset[tuple[Any, ...]]:
    """Return the schema of a journal, as SQLite keeps it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return frozenset(db.execute(_SCHEMA_OF).fetchall())


_SCHEMA_OF = "SELECT type, name, tbl_name, sql FROM sqlite_schema"


def _demand_file(path: Path) -> None:
    """Raise `ConfigError` for a pipe or a device, which could block for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{path} is not a journal: it is a pipe or a device; name an ordinary file")


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """Raise `ConfigError` unless the file is a journal that this version can read."""
    with explain_errors(path):
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise ConfigError(f"{path} is not a journal: it is some other program's SQLite file")
    demand_format(version, path)
    with explain_errors(path):
        tables = frozenset(db.execute(_SCHEMA_OF).fetchmany(len(_tables()) + 1))
    if tables != _tables():
        raise ConfigError(f"{path} is not a journal: it has other tables than a journal of format {FORMAT}")


class SqliteFile:
    """One journal, with the methods of `postgres.PostgresPart`. Nothing happens to the file before `hold` or `open`."""

    def __init__(self, path: Path) -> None:
        self.location = path
        self._db: sqlite3.Connection | None = None
        self._lock: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._db is not None

    @property
    def size(self) -> int:
        """Bytes written so far, including those that SQLite keeps beside the file while it is open."""
        if self._db is None:
            return 0
        with explain_errors(self.location):
            pages = self._db.execute("PRAGMA page_count").fetchone()[0]
            return pages * self._db.execute("PRAGMA page_size").fetchone()[0]

    def hold(self, run: str | None) -> None:
        """Claim the file for writing until `close`."""
        if self._lock is None:
            self._lock = claim(self.location)

    def open(self) -> int:
        """Open it for writing; return the number of the next event."""
        self.hold(None)
        try:
            self._db = connect(self.location, write=True)
            with explain_errors(self.location):
                empty = not self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            if not empty:  # before changing a foreign file
                check_format(self._db, self.location)
            with explain_errors(self.location):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = normal")
                self._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
                if empty:
                    prepare(self._db)
            with explain_errors(self.location):
                return self._db.execute("SELECT coalesce(max(seq), 0) + 1 FROM events").fetchone()[0]
        except BaseException:
            self._release()
            raise

    def begin(self, first: int, header: str) -> None:
        """Write a session's header."""
        assert self._db is not None
        with explain_errors(self.location):
            self._db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?)", (first, header))

    def write(self, batch: WriteBatch, sync: bool) -> None:
        """Write a batch in one transaction."""
        assert self._db is not None
        try:
            if sync:
                self._db.execute("PRAGMA synchronous = full")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, lines in (
                    ("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", batch.events),
                    ("UPDATE events SET actions = ? WHERE seq = ?", batch.actions),
                    ("INSERT OR IGNORE INTO marks VALUES (?, ?)", batch.marks),
                    (_BEGUN, [line[:5] for line in batch.begun]),
                    ("UPDATE runs SET status = ?, tokens = ?, ended = ? WHERE run = ?", batch.ended),
                    ("INSERT INTO notes (run, step, attempt, kind, note) VALUES (?, ?, ?, ?, ?)", batch.notes),
                ):
                    if lines:
                        self._db.executemany(statement, lines)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
            finally:
                if sync:
                    self._db.execute("PRAGMA synchronous = normal")
        except (sqlite3.Error, UnicodeDecodeError):
            with explain_errors(self.location):
                raise

    def give_up(self) -> None:
        """Do nothing: the file's lock shows whether a process writes the file."""

    def close(self) -> None:
        """Close the file; SQLite leaves no second file beside it."""
        if self._db is not None:
            # Otherwise a file in a read-only folder could not be read. A concurrent reader may prevent the switch.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA journal_mode = DELETE")
        self._release()

    def _release(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def rows(self, after: int) -> Iterator[tuple[Any, ...]]:
        """Yield number, time, run, kind, event and actions of the events after one."""
        with self._reading() as db:
            select = "SELECT seq, at, run, kind, event, actions FROM events WHERE seq > ? ORDER BY seq"
            yield from db.execute(select, (after,))

    def rows_of(self, run: str, after: int) -> Iterator[tuple[Any, ...]]:
        """Yield the events that concern a run."""
        which = (
            "SELECT seq FROM events WHERE run = ? UNION SELECT seq FROM marks WHERE run = ? "
            "UNION SELECT seq FROM events WHERE run IS NULL"
        )
        with self._reading() as db:
            select = (
                f"SELECT seq, at, run, kind, event, actions FROM events WHERE seq IN ({which}) AND seq > ? ORDER BY seq"
            )
            yield from db.execute(select, (run, run, after))

    def last(self) -> int:
        """Return the number of the last event."""
        with self._reading() as db:
            return db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]

    def notes(self, run: str) -> list[tuple[Any, ...]]:
        """Return the notes of a run."""
        with self._reading() as db:
            select = "SELECT run, step, attempt, kind, note FROM notes WHERE run = ? ORDER BY id"
            return db.execute(select, (run,)).fetchall()

    def runs(self, before: int | None = None, like: str = "", most: int = -1) -> list[tuple[Any, ...]]:
        """Return lines of the index of the runs."""
        with self._reading() as db:
            columns = "SELECT run, first, created, text, planner, status, tokens, ended FROM runs"
            if like:
                where, given = "run >= ? AND run < ? AND (? IS NULL OR first < ?)", (like, f"{like}\U0010ffff")
                select = f"{columns} WHERE {where} ORDER BY first DESC LIMIT ?"
                return db.execute(select, (*given, before, before, most)).fetchall()
            select = f"{columns} WHERE first < ? ORDER BY first DESC LIMIT ?"
            return db.execute(select, ((1 << 62) if before is None else before, most)).fetchall()

    def count(self) -> int:
        """Return the number of runs in the index."""
        with self._reading() as db:
            return db.execute("SELECT count(*) FROM runs").fetchone()[0]

    def sessions(self) -> list[tuple[int, str]]:
        """Return the first event and the header of each session."""
        with self._reading() as db:
            return db.execute("SELECT first, header FROM sessions ORDER BY first").fetchall()

    @contextlib.contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        with contextlib.closing(connect(self.location, write=False)) as db, explain_errors(self.location):
            check_format(db, self.location)
            yield db
