"""The SQLite file under a journal: found, claimed by one writer, known by its format, its troubles put into words.

Knows nothing of what is written in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path

from ..core.errors import ConfigError

FORMAT = 1
APPLICATION = 0x706C6974  # "plit", in SQLite's own header: says whose file this is
_MAGIC = b"SQLite format 3\0"


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
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is not a journal, or is damaged: {error}") from None


def claim(path: Path) -> int:
    """Create the file if need be, readable by its owner alone (it holds prompts), and claim it for writing.

    Return a file descriptor: the claim lasts until it is closed.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the journal {path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(f"{path} is being written by another run; give each its own journal") from None
    except OSError:  # a file system without such locks
        pass
    return handle


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """Open a file that is there, for writing or reading."""
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
