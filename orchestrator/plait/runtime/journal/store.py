"""Queries over all runs of a PostgreSQL store: the list, orders and answers from other processes, deletions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from ...core.errors import UsageError
from .connection import connected
from .location import Database
from .store_membership import CHANNEL
from .tables import RunLine

_PAGE = 500
_ALIVE = "coalesce(NOT p.over AND p.beat + p.lease >= now(), false)"
_FROM = "FROM plait.runs r JOIN plait.journals j ON j.id = r.journal LEFT JOIN plait.processes p ON p.id = j.process"


def lines(database: Database, like: str = "") -> Iterator[tuple[RunLine, Database, bool, str]]:
    """Yield the runs with the id prefix `like`, newest first: index line, journal, whether a live process owns the run,
    and its fairness group."""
    before = 1 << 62
    while True:
        with connected(database) as db:
            rows = db.execute(
                f"SELECT r.number, r.journal, {_ALIVE}, r.share, r.run, r.first, r.created, r.text, r.planner, "  # pyright: ignore[reportArgumentType, reportCallIssue]
                f"r.status, r.tokens, r.ended {_FROM} WHERE r.number < %s AND (%s::bigint IS NULL OR r.journal = %s) "
                f"AND starts_with(r.run, %s) "
                f"ORDER BY r.number DESC LIMIT {_PAGE}",
                (before, database.journal, database.journal, like),
            ).fetchall()
        for number, journal, alive, share, *line in rows:
            before = number
            yield RunLine(*line), database.numbered(journal), alive, share
        if len(rows) < _PAGE:
            return


def owner(database: Database, run: str) -> str | None:
    """Return the share of a run, or `None` for an unknown run."""
    with connected(database) as db:
        row = db.execute("SELECT share FROM plait.runs WHERE run = %s", (run,)).fetchone()
    return None if row is None else row[0]


def order(database: Database, run: str, verb: str, about: str = "", value: JsonValue = None) -> None:
    """Send an order to the process of a run. Raises `UsageError` for a run that is not active."""
    with connected(database) as db, db.transaction():
        row = db.execute(f"SELECT r.status, {_ALIVE} {_FROM} WHERE r.run = %s", (run,)).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
        if row is None or row[0] is not None:
            raise UsageError(f"run {run} is not active" + (f": it is {row[0]}" if row is not None else ""))
        _put(db, run, verb, about, value)


def _put(db: Any, run: str, verb: str, about: str, value: JsonValue) -> None:
    db.execute(
        "INSERT INTO plait.orders (run, verb, about, value) VALUES (%s, %s, %s, %s)",
        (run, verb, about, json.dumps(value)),
    )
    db.execute("SELECT pg_notify(%s, %s)", (CHANNEL, run))


def leave_answer(database: Database, run: str, question: str, value: JsonValue) -> None:
    """Store the answer to a question for the run's current or later process."""
    with connected(database) as db, db.transaction():
        _put(db, run, "answer", question, value)


def answered(database: Database, run: str, question: str) -> bool:
    """Whether an answer waits to be taken."""
    with connected(database) as db:
        select = "SELECT 1 FROM plait.orders WHERE run = %s AND verb = 'answer' AND about = %s"
        return db.execute(select, (run, question)).fetchone() is not None


def take_answer(database: Database, run: str, question: str) -> str | None:
    """Remove an answer and return its JSON; only for the journal that has the run now."""
    with connected(database) as db:
        row = db.execute(
            "DELETE FROM plait.orders o USING plait.runs r, plait.journals j, plait.processes p WHERE r.run = o.run "
            "AND r.journal = %s AND j.id = r.journal AND p.id = j.process AND NOT p.over "
            "AND o.run = %s AND o.verb = 'answer' AND o.about = %s RETURNING o.value",
            (database.journal, run, question),
        ).fetchone()
    return None if row is None else row[0]


def sweep(
    database: Database, *, keep: int | None = None, older_than: float | None = None, interrupted: bool = False
) -> tuple[list[Database], int]:
    """Delete ended runs: all but the newest `keep`, and runs that ended `older_than` seconds ago. A journal is deleted
    with its last run. Return the deleted journals and the bytes of their events.

    With `interrupted`, also delete runs whose process has died.
    """
    many = "r.number <= (SELECT coalesce((SELECT number FROM plait.runs ORDER BY number DESC OFFSET %s LIMIT 1), 0))"
    old = "coalesce(r.ended, r.created)::timestamptz < now() - make_interval(secs => %s)"
    chosen = [
        *([(many, keep)] if keep is not None else []),
        *([(old, older_than)] if older_than is not None else []),
    ]
    if not chosen:
        return [], 0
    which = " OR ".join(f"({clause})" for clause, _ in chosen)
    ended = f"(r.status IS NOT NULL{f' OR NOT {_ALIVE}' if interrupted else ''})"
    gone: list[Database] = []
    freed = 0
    with connected(database) as db, db.transaction():
        select = f"SELECT r.run {_FROM} WHERE ({which}) AND {ended}"
        runs = [run for (run,) in db.execute(select, [value for _, value in chosen]).fetchall()]  # pyright: ignore[reportArgumentType, reportCallIssue]
        for table in ("runs", "notes", "orders"):
            db.execute(f"DELETE FROM plait.{table} WHERE run = ANY(%s)", (runs,))  # pyright: ignore[reportArgumentType, reportCallIssue]
        while True:  # a journal that others begin with goes after them
            free = db.execute(
                "SELECT j.id FROM plait.journals j LEFT JOIN plait.processes p ON p.id = j.process "
                f"WHERE NOT {_ALIVE} AND NOT EXISTS (SELECT 1 FROM plait.runs r WHERE r.journal = j.id) "
                "AND NOT EXISTS (SELECT 1 FROM plait.journals c WHERE c.parent = j.id)"
            ).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]
            if not free:
                return gone, freed
            for (number,) in free:
                db.execute("DELETE FROM plait.marks WHERE journal = %s", (number,))
                for table, size in (("actions", "actions"), ("events", "event"), ("sessions", "header")):
                    counted = f"DELETE FROM plait.{table} WHERE journal = %s RETURNING length({size})"
                    freed += sum(size_of for (size_of,) in db.execute(counted, (number,)).fetchall())  # pyright: ignore[reportArgumentType, reportCallIssue]
                db.execute("DELETE FROM plait.journals WHERE id = %s", (number,))
                gone.append(database.numbered(number))
