"""A store of journals in PostgreSQL, for many processes: each journal has one writer, and every process reads all.

A process has a row in `processes` and reports regularly that it is alive (`store_membership.py`). It owns its journals
until it has been silent for its whole lease; then another process may take over its runs, one at a time. The new owner
first marks the silent process as ended. From then on the old process cannot write (`plait.fence`), even if it was only
slow, so the new owner reads the complete journal.

A run that is taken over continues in a new journal that refers to the former one (`parent`, `base`) without a copy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError, RunTaken
from .connection import connected, explain_errors, open_connection
from .location import Database, Location
from .store_membership import ProcessMember, acquire, release
from .tables import WriteBatch

if TYPE_CHECKING:
    import psycopg

_PATIENCE = 5.0
"""Timeout of reconnecting in seconds; then the journal counts as broken."""
_CHAIN = """
WITH RECURSIVE chain(id, parent, base, upto) AS (
    SELECT id, parent, base, 9223372036854775807 FROM plait.journals WHERE id = %s
    UNION ALL
    SELECT j.id, j.parent, j.base, least(chain.upto, chain.base)
    FROM plait.journals j JOIN chain ON j.id = chain.parent
)
"""
"""The journal and its parents, each with its last valid event."""


def _plain(text: str) -> str:
    """Return a text for PostgreSQL, which rejects character 0 and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def kept(text: str | bytes) -> bytes:
    """Return the stored form of a packed text. A compressed text begins with `x`, which never begins JSON."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def given(data: bytes) -> str | bytes:
    """Return the value of `kept`."""
    return data if data[:1] == b"x" else data.decode("utf-8", "surrogatepass")


class PostgresPart:
    """One journal of a store, with the same methods as `sqlite.SqliteFile`. Nothing happens before `hold` or `open`."""

    def __init__(self, database: Database) -> None:
        self.location: Location = database
        self._where = database
        self._db: psycopg.Connection[Any] | None = None
        self._member: ProcessMember | None = None
        self._process = ""
        self._written = 0
        self._unused = False
        """It was made, and no session was begun in it."""

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._db is not None

    @property
    def size(self) -> int:
        """Bytes written by this object."""
        return self._written

    def _at(self, number: int) -> None:
        self.location = self._where = self._where.numbered(number)

    # -- writing -----------------------------------------------------------------------------------------------------

    def hold(self, run: str | None) -> None:
        """Create a journal of this process: a new one, or one that resumes a run of this journal. Raises `ConfigError`
        for a run that a live process owns or has just taken."""
        if self._member is not None:
            return
        member = acquire(self._where)
        try:
            self._process = member.id
            with connected(self._where) as db, db.transaction():
                if run is not None:
                    self._take(db, run, member)
                elif self._where.journal is None:
                    self._make(db, None, None, member.pool)
                else:
                    raise RunTaken(f"{self._where} has been written by another process: name the store without #")
        except BaseException:
            release(member)
            raise
        self._member = member

    def _make(self, db: psycopg.Connection[Any], parent: int | None, base: int | None, pool: str) -> int:
        row = db.execute(
            "INSERT INTO plait.journals (process, pool, parent, base) VALUES (%s, %s, %s, %s) RETURNING id",
            (self._process, pool, parent, base),
        ).fetchone()
        assert row is not None
        self._at(row[0])
        self._unused = True
        return row[0]

    def _take(self, db: psycopg.Connection[Any], run: str, member: ProcessMember) -> None:
        """Take over a run whose process has ended."""
        row = db.execute(
            "SELECT j.id, j.process, j.pool, j.parent, j.base, r.status FROM plait.runs r "
            "JOIN plait.journals j ON j.id = r.journal WHERE r.run = %s",
            (run,),
        ).fetchone()
        if row is None:
            raise ConfigError(f"{self._where} holds no run {run!r}")
        number, process, pool, parent, base, status = row
        if status is not None:  # it is only read
            return
        if process is not None:
            # This waits for a running write of that process.
            over = db.execute(
                "UPDATE plait.processes SET over = true WHERE id = %s AND (over OR beat + lease < now()) RETURNING id",
                (process,),
            ).fetchone()
            if over is None:
                raise RunTaken(f"run {run} is being run by another process, which is alive")
        locked = db.execute("SELECT journal, status FROM plait.runs WHERE run = %s FOR UPDATE", (run,)).fetchone()
        if locked != (number, None):
            raise RunTaken(f"run {run} was just taken over by another process, or has ended")
        last = db.execute("SELECT max(seq) FROM plait.events WHERE journal = %s", (number,)).fetchone()
        if last is not None and last[0] is not None:
            parent, base = number, last[0]
        made = self._make(db, parent, base, pool or member.pool)
        db.execute("UPDATE plait.runs SET journal = %s WHERE run = %s", (made, run))

    def open(self) -> int:
        """Open it for writing; return the number of the next event."""
        self.hold(None)
        try:
            self._db = open_connection(self._where)
            with explain_errors(self._where):
                return self._last(self._db) + 1
        except BaseException:
            self.close()
            raise

    def begin(self, first: int, header: str) -> None:
        """Write a session's header."""
        self._transact(
            [
                (
                    "INSERT INTO plait.sessions VALUES (%s, %s, %s) "
                    "ON CONFLICT (journal, first) DO UPDATE SET header = excluded.header",
                    [(self._where.journal, first, kept(header))],
                )
            ],
            sync=True,
        )
        self._unused = False

    def write(self, batch: WriteBatch, sync: bool) -> None:
        """Write a batch in one transaction. An existing row comes from an earlier try that lost its connection."""
        number = self._where.journal
        events = [
            (number, *line[:4], kept(line[4]), None if line[5] is None else kept(line[5])) for line in batch.events
        ]
        actions = [(kept(text), number, seq) for text, seq in batch.actions]
        marks = [(number, run, seq) for run, seq in batch.marks]
        begun = [(run, number, *rest, _plain(text), planner, share)
                 for run, *rest, text, planner, share in batch.begun]  # fmt: skip
        notes = [(*note[:4], kept(note[4])) for note in batch.notes]
        self._transact(
            [
                (
                    "INSERT INTO plait.events (journal, seq, at, run, kind, event, actions) "
                    "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    events,
                ),
                ("UPDATE plait.events SET actions = %s WHERE journal = %s AND seq = %s", actions),
                ("INSERT INTO plait.marks (journal, run, seq) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", marks),
                (
                    "INSERT INTO plait.runs (run, journal, first, created, text, planner, share) "
                    "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                    begun,
                ),
                ("UPDATE plait.runs SET status = %s, tokens = %s, ended = %s WHERE run = %s", batch.ended),
                ("INSERT INTO plait.notes (run, step, attempt, kind, note) VALUES (%s, %s, %s, %s, %s)", notes),
            ],
            sync,
        )
        self._written += sum(len(line[-1]) + 60 for line in notes) + sum(len(line[5]) + 100 for line in events)

    def _transact(self, statements: list[tuple[str, list[Any]]], sync: bool) -> None:
        """Run a transaction. A lost connection is reopened for `_PATIENCE` seconds."""
        import psycopg

        until = time.monotonic() + _PATIENCE
        with explain_errors(self._where):
            while True:
                try:
                    if self._db is None or self._db.closed:
                        self._db = open_connection(self._where)
                    with self._db.pipeline(), self._db.transaction():
                        if not sync:
                            self._db.execute("SET LOCAL synchronous_commit = off")
                        self._db.execute("SELECT plait.fence(%s)", (self._process,))
                        cursor = self._db.cursor()
                        for statement, lines in statements:
                            if lines:
                                cursor.executemany(statement, lines)  # pyright: ignore[reportArgumentType]
                    return
                except (psycopg.OperationalError, ConfigError):
                    if self._db is not None and not self._db.closed and not self._db.broken:
                        raise
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)

    def give_up(self) -> None:
        """Record its active runs as failed as soon as the store is reachable."""
        if self._member is not None and self._where.journal is not None:
            self._member.give_up(self._where.journal)

    def close(self) -> None:
        """Close the journal. A journal created for a resume without a session has no owner afterwards."""
        member, self._member = self._member, None
        if member is not None and self._unused:
            with contextlib.suppress(ConfigError), connected(self._where) as db:
                db.execute("UPDATE plait.journals SET process = NULL WHERE id = %s", (self._where.journal,))
        if self._db is not None:
            self._db.close()
            self._db = None
        if member is not None:
            release(member)

    # -- reading -----------------------------------------------------------------------------------------------------

    def rows(self, after: int) -> Iterator[tuple[Any, ...]]:
        """Yield number, time, run, kind, event and actions of the events after one."""
        yield from self._rows("", (after,))

    def rows_of(self, run: str, after: int) -> Iterator[tuple[Any, ...]]:
        """Yield the events that concern a run."""
        where = (
            "AND (e.run = %s OR e.run IS NULL OR EXISTS (SELECT 1 FROM plait.marks m "
            "WHERE m.journal = e.journal AND m.run = %s AND m.seq = e.seq)) "
        )
        yield from self._rows(where, (after, run, run))

    def _rows(self, where: str, values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        select = (
            f"{_CHAIN} SELECT e.seq, e.at, e.run, e.kind, e.event, e.actions FROM plait.events e "
            f"JOIN chain ON e.journal = chain.id AND e.seq <= chain.upto AND e.seq > %s {where}ORDER BY e.seq"
        )
        with connected(self._where) as db, db.transaction(), db.cursor("rows") as cursor:
            cursor.itersize = 1000
            for seq, at, run, kind, event, actions in cursor.execute(select, (self._where.journal, *values)):  # pyright: ignore[reportArgumentType, reportCallIssue]
                yield seq, at, run, kind, given(event), None if actions is None else given(actions)

    def last(self) -> int:
        """Return the number of the last event."""
        with connected(self._where) as db:
            return self._last(db)

    def _last(self, db: psycopg.Connection[Any]) -> int:
        select = f"{_CHAIN} SELECT max(e.seq) FROM plait.events e JOIN chain ON e.journal = chain.id"
        row = db.execute(f"{select} WHERE e.seq <= chain.upto", (self._where.journal,)).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
        return (row[0] or 0) if row is not None else 0

    def notes(self, run: str) -> list[tuple[Any, ...]]:
        """Return the notes of a run."""
        with connected(self._where) as db:
            select = "SELECT run, step, attempt, kind, note FROM plait.notes WHERE run = %s ORDER BY id"
            return [(*line[:4], given(line[4])) for line in db.execute(select, (run,)).fetchall()]

    def runs(self, before: int | None = None, like: str = "", most: int = -1) -> list[tuple[Any, ...]]:
        """Return index lines of the runs that are in this journal now."""
        with connected(self._where) as db:
            return db.execute(
                "SELECT run, first, created, text, planner, status, tokens, ended FROM plait.runs WHERE journal = %s "
                "AND (%s::bigint IS NULL OR first < %s) AND starts_with(run, %s) ORDER BY first DESC LIMIT %s",
                (self._where.journal, before, before, like, None if most < 0 else most),
            ).fetchall()

    def count(self) -> int:
        """Return the number of runs in this journal."""
        with connected(self._where) as db:
            select = "SELECT count(*) FROM plait.runs WHERE journal = %s"
            row = db.execute(select, (self._where.journal,)).fetchone()
            return row[0] if row is not None else 0

    def sessions(self) -> list[tuple[int, str]]:
        """Return the first event and the header of each session."""
        select = (
            f"{_CHAIN} SELECT s.first, s.header FROM plait.sessions s "
            "JOIN chain ON s.journal = chain.id AND s.first <= chain.upto ORDER BY s.first"
        )
        with connected(self._where) as db:
            lines = db.execute(select, (self._where.journal,)).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]
            return [(first, header.decode()) for first, header in lines]
