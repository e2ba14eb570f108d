"""Numbers that all processes of a store add to: how much there was of something in a span of time."""

from __future__ import annotations

from .connection import connected
from .location import Database

__all__ = ["Counters"]


class Counters:
    """Methods raise `ConfigError`, and may be called on any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, span: int, amounts: tuple[float, ...]) -> tuple[float, ...]:
        """Add to the numbers of a span (a minute or a day, counted from 1970) and return them; nothing is added by
        zeros. Earlier spans of that name are forgotten."""
        with connected(self._database) as db, db.transaction():
            db.execute("DELETE FROM plait.counters WHERE name = %s AND span < %s", (name, span))
            sums: list[float] = []
            for place, amount in enumerate(amounts):
                row = db.execute(
                    "INSERT INTO plait.counters AS c (name, span, place, n) VALUES (%s, %s, %s, %s) "
                    "ON CONFLICT (name, span, place) DO UPDATE SET n = c.n + excluded.n RETURNING n",
                    (name, span, place, amount),
                ).fetchone()
                assert row is not None
                sums.append(row[0])
        return tuple(sums)
