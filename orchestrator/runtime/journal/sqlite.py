"""The SQLite file of a journal: opens it, claims it for one writer, checks its format, and words its errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
import zlib
from collections.abc import Generator
from pathlib import Path

from ...core.errors import ConfigError

FORMAT = 4
APPLICATION = 0x706C6974  # "plit", in SQLite's own header: says whose file this is
SCHEMA = """
CREATE TABLE sessions (first INTEGER PRIMARY KEY, header TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT, kind TEXT NOT NULL, event TEXT NOT NULL);
CREATE TABLE actions (seq INTEGER PRIMARY KEY, actions TEXT NOT NULL);
CREATE VIEW rows AS SELECT seq, at, run, kind, event, actions FROM events LEFT JOIN actions USING (seq);
"""
SCHEMA_2 = """
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, step TEXT NOT NULL, attempt INTEGER, kind TEXT NOT NULL, note TEXT
);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, first INTEGER NOT NULL, created TEXT NOT NULL, text TEXT NOT NULL, planner TEXT NOT NULL,
    status TEXT, tokens INTEGER NOT NULL DEFAULT 0, ended TEXT
);
"""
"""Tables that format 2 added: notes (intents, questions, answers), which no machine sees, and an index of the runs.
Formats 3 and 4 have the same tables. Since format 3 sessions may be `told`, and actions are abridged differently; since
format 4 runs divide slots, where their steps went in order of arrival before, and the end of a partial run says which
limit cut it."""
_MAGIC = b"SQLite format 3\0"
_LONG = 4096  # bytes from which on a text is compressed: prompts and token ids, which repeat themselves
_PATIENCE = 0.5  # seconds to wait for a claim: a process that only asks whether a file is claimed holds it for a moment


@contextlib.contextmanager
def explained(path: Path) -> Generator[None]:
    """Turn what SQLite raises into a `ConfigError` that says what to do."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise ConfigError(f"{path} was written by another process at the same time: {error}") from None
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise ConfigError(f"{path} is locked by another program; close it, or write to another file") from None
        raise ConfigError(f"{path} cannot be used: {error}; check space and permissions there") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a journal, or is damaged: {error}") from None


def claim(path: Path) -> int:
    """Create the file if need be, readable by its owner alone (it holds prompts), and claim it for writing.

    Return a file descriptor: the claim lasts until it is closed.
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
    """Give an empty file its tables, and one of an older format those that it lacks."""
    if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        head = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};"
        db.executescript(f"BEGIN IMMEDIATE; {head} {SCHEMA} {SCHEMA_2} COMMIT;")
    elif (
        db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
        and (version := db.execute("PRAGMA user_version").fetchone()[0]) < FORMAT
    ):
        tables = SCHEMA_2 if version == 1 else ""
        db.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {FORMAT}; {tables} COMMIT;")


def packed(text: str) -> str | bytes:
    """Return a text as it is kept: compressed if it is long."""
    return text if len(text) < _LONG else zlib.compress(text.encode(), 6)


def unpacked(kept: str | bytes) -> str:
    """Return a text that was `packed`. Raises `ValueError` if it is damaged."""
    if isinstance(kept, str):
        return kept
    try:
        return zlib.decompress(kept).decode()
    except zlib.error as error:
        raise ValueError(str(error)) from None


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
    # A file left by a crash is repaired by its first reader, which must be able to write for that.
    writable = write or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    with explained(path):
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}",
            uri=True,
            timeout=5.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error:
            db.close()
            raise
    return db


def _demand_file(path: Path) -> None:
    """Raise `ConfigError` for a pipe or a device, which would be waited for without an end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{path} is not a journal: it is a pipe or a device; name an ordinary file")


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """Raise `ConfigError` unless the file is a journal that this version can read."""
    with explained(path):
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise ConfigError(f"{path} is not a journal: it is some other program's SQLite file")
    if version > FORMAT:
        raise ConfigError(
            f"{path} has journal format {version}, newer than {FORMAT}, the newest that this version of plait reads: "
            "upgrade plait"
        )
