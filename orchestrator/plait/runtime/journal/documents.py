"""Documents beside the journals, found by their ids: what a server has to know of its clients' requests after a
restart, or from another process. Each may have pieces, which are added while it grows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from .connection import connected
from .directory import default_folder
from .location import Database, Location

__all__ = ["Documents"]

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    body BLOB NOT NULL, PRIMARY KEY (kind, id)
);
CREATE TABLE IF NOT EXISTS pieces (
    kind TEXT NOT NULL, id TEXT NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, id, place)
);
"""


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
                db.executescript(_TABLES)
                with db:
                    yield db
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{path} cannot be used: {error}; check space and permissions there") from None

    def _do(self, db: Any, statement: str, *values: object) -> Any:
        filled = statement.replace("?", self._mark).replace("@", self._tables)
        return db.execute(filled, (self._kind, *values))

    def put(self, id: str, owner: str, body: bytes) -> None:
        """Write a document, in place of one with the same id."""
        with self._open() as db:
            self._do(
                db,
                "INSERT INTO @documents (kind, id, owner, body) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body",
                *(id, owner, body),
            )

    def get(self, id: str) -> tuple[str, bytes] | None:
        """Return the owner and the body of a document; `None` if it is not there."""
        with self._open() as db:
            row = self._do(db, "SELECT owner, body FROM @documents WHERE kind = ? AND id = ?", id).fetchone()
        return None if row is None else (row[0], bytes(row[1]))

    def page(self, owner: str, after: str, most: int, newest: bool) -> list[tuple[str, bytes]]:
        """Return ids and bodies of an owner's documents, at most so many, in the order in which they were first written
        (those of one second in any), or the `newest` first: those behind the one called `after`, or from the first."""
        sign, way = ("<", "DESC") if newest else (">", "ASC")
        behind = f"AND (at, id) {sign} (SELECT at, id FROM @documents WHERE kind = ? AND id = ?) " if after else ""
        mine = "SELECT id, body FROM @documents WHERE kind = ? AND owner = ?"
        select = f"{mine} {behind}ORDER BY at {way}, id {way} LIMIT ?"
        values = (owner, *((self._kind, after) if after else ()), most)
        with self._open() as db:
            return [(name, bytes(body)) for name, body in self._do(db, select, *values).fetchall()]

    def add(self, id: str, first: int, pieces: Sequence[bytes]) -> None:
        """Add pieces, of which the first has the number `first`; those that are there from it on are replaced."""
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
        """Delete a document and its pieces."""
        with self._open() as db:
            for table in ("pieces", "documents"):
                self._do(db, f"DELETE FROM @{table} WHERE kind = ? AND id = ?", id)

    def trim(self, keep: int) -> None:
        """Delete all but so many: the oldest of the owner that has most, one after another."""
        old = (
            "SELECT id FROM (SELECT id, at, row_number() OVER (PARTITION BY owner ORDER BY at DESC, id) AS place "
            "FROM @documents WHERE kind = ?) AS placed ORDER BY place, at DESC, id LIMIT 1000000 OFFSET ?"
        )
        with self._open() as db:
            for (gone,) in self._do(db, old, keep).fetchall():
                for table in ("pieces", "documents"):
                    self._do(db, f"DELETE FROM @{table} WHERE kind = ? AND id = ?", gone)


def _file(location: Path) -> Path:
    if location.is_dir() or location == default_folder():
        return location / "server.documents"
    return location.with_name(f"{location.name}.documents")
