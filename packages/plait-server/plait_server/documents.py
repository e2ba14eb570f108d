"""Documents beside the journals, found by their ids: what a server has to know of its clients' requests after a
restart, or from another process. Each may have pieces, which are added while it grows.

A document has a head, which lists show, and a body. So a list reads no more than it shows: neither the bodies, which
hold whole conversations, nor the documents that its labels leave out.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError
from plait.runtime.journal.connection import connected
from plait.runtime.journal.directory import default_folder
from plait.runtime.journal.location import Database, Location

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    body BLOB NOT NULL, head BLOB NOT NULL DEFAULT X'', size INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (kind, id)
);
CREATE TABLE IF NOT EXISTS pieces (
    kind TEXT NOT NULL, id TEXT NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, id, place)
);
"""
_NEWER = """
CREATE TABLE IF NOT EXISTS labels (
    kind TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, id, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS documents_of_owner ON documents (kind, owner, at, id, size);
"""
_PARTS = ("pieces", "labels", "documents")


class Documents:
    """Documents of one kind. All methods raise `ConfigError`, and may be called on any thread.

    Args:
        location: where the journals are. In a folder, or beside a file, stands a file `NAME.documents`.
        kind: a word.
    """

    def __init__(self, location: Location, kind: str) -> None:
        self._location, self._kind = location, kind
        self._mark, self._tables = ("%s", "plait.") if isinstance(location, Database) else ("?", "")
        self.shared = isinstance(location, Database)
        """Whether other processes have the same documents."""

    @contextlib.contextmanager
    def _open(self) -> Generator[Any]:
        """Lend a connection, with what is done in one transaction."""
        if isinstance(self._location, Database):
            with connected(self._location) as db, db.transaction():
                yield db
            return
        path = _file(self._location)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            with contextlib.closing(sqlite3.connect(path, timeout=10)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = normal")
                _create_tables(db)
                with db:
                    yield db
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{path} cannot be used: {error}; check space and permissions there") from None

    def _do(self, db: Any, statement: str, *values: object) -> Any:
        filled = statement.replace("?", self._mark).replace("@", self._tables)
        return db.execute(filled, (self._kind, *values))

    def put(self, id: str, owner: str, body: bytes, head: bytes = b"", labels: Mapping[str, str] | None = None) -> None:
        """Write a document, in place of one with the same id, and its labels."""
        with self._open() as db:
            self._do(
                db,
                "INSERT INTO @documents (kind, id, owner, body, head, size) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT "
                "(kind, id) DO UPDATE SET body = excluded.body, head = excluded.head, size = excluded.size",
                *(id, owner, body, head, len(body) + len(head)),
            )
            self._do(db, "DELETE FROM @labels WHERE kind = ? AND id = ?", id)
            for name, value in (labels or {}).items():
                self._do(db, "INSERT INTO @labels (kind, id, name, value) VALUES (?, ?, ?, ?)", id, name, value)

    def get(self, id: str) -> tuple[str, bytes, bytes] | None:
        """Return the owner, the body and the head of a document, or `None` for an unknown id."""
        with self._open() as db:
            row = self._do(db, "SELECT owner, body, head FROM @documents WHERE kind = ? AND id = ?", id).fetchone()
        return None if row is None else (row[0], bytes(row[1]), bytes(row[2]))

    def page(
        self, owner: str, after: str, limit: int, newest: bool, labels: Mapping[str, str] | None = None
    ) -> list[tuple[str, bytes]]:
        """Return ids and heads of an owner's documents that have these labels, at most `limit`.

        They are in the order of their first write (in any order within a second), or the `newest` first: those behind
        the id `after`, or from the start.
        """
        sign, way = ("<", "DESC") if newest else (">", "ASC")
        select = "SELECT id, head FROM @documents AS d WHERE kind = ? AND owner = ?"
        values: list[object] = [owner]
        if after:
            select += f" AND (at, id) {sign} (SELECT at, id FROM @documents WHERE kind = ? AND id = ?)"
            values += [self._kind, after]
        for name, value in (labels or {}).items():
            select += (
                " AND EXISTS (SELECT 1 FROM @labels AS l WHERE l.kind = d.kind AND l.id = d.id AND l.name = ? "
                "AND l.value = ?)"
            )
            values += [name, value]
        select += f" ORDER BY at {way}, id {way} LIMIT ?"
        with self._open() as db:
            return [(name, bytes(head)) for name, head in self._do(db, select, *values, limit).fetchall()]

    def add(self, id: str, first: int, pieces: Sequence[bytes]) -> None:
        """Add pieces, numbered from `first`; existing pieces with these and later numbers are replaced."""
        with self._open() as db:
            self._do(db, "DELETE FROM @pieces WHERE kind = ? AND id = ? AND place >= ?", id, first)
            for place, piece in enumerate(pieces, first):
                self._do(db, "INSERT INTO @pieces (kind, id, place, body) VALUES (?, ?, ?, ?)", id, place, piece)

    def pieces(self, id: str, first: int) -> list[bytes]:
        """Return the pieces from one on."""
        select = "SELECT body FROM @pieces WHERE kind = ? AND id = ? AND place >= ? ORDER BY place"
        with self._open() as db:
            return [bytes(body) for (body,) in self._do(db, select, id, first).fetchall()]

    def delete(self, id: str) -> None:
        """Delete a document with its pieces and labels."""
        with self._open() as db:
            self._delete(db, id)

    def _delete(self, db: Any, id: str) -> None:
        for table in _PARTS:
            self._do(db, f"DELETE FROM @{table} WHERE kind = ? AND id = ?", id)

    def trim(self, keep: int, bytes_per_owner: int) -> None:
        """Delete the oldest documents: of each owner those beyond `bytes_per_owner`, then documents above `keep`, the
        oldest of the owner with the most, one after another."""
        large = (
            "SELECT id FROM (SELECT id, sum(size) OVER (PARTITION BY owner ORDER BY at DESC, id DESC) AS total "
            "FROM @documents WHERE kind = ?) AS added WHERE total > ?"
        )
        old = (
            "SELECT id FROM (SELECT id, at, row_number() OVER (PARTITION BY owner ORDER BY at DESC, id) AS place "
            "FROM @documents WHERE kind = ?) AS placed ORDER BY place, at DESC, id LIMIT 1000000 OFFSET ?"
        )
        with self._open() as db:
            for select, limit in ((large, bytes_per_owner), (old, keep)):
                for (gone,) in self._do(db, select, limit).fetchall():
                    self._delete(db, gone)


def _create_tables(db: sqlite3.Connection) -> None:
    """Create the tables of a file, and the columns that files of earlier versions lack."""
    db.executescript(_TABLES)
    if len(db.execute("SELECT * FROM pragma_table_info('documents')").fetchall()) < 7:
        for column in ("head BLOB NOT NULL DEFAULT X''", "size INTEGER NOT NULL DEFAULT 0"):
            db.execute(f"ALTER TABLE documents ADD COLUMN {column}")
    db.executescript(_NEWER)


def _file(location: Path) -> Path:
    if location.is_dir() or location == default_folder():
        return location / "server.documents"
    return location.with_name(f"{location.name}.documents")
