"""Connections to a store in PostgreSQL: open them, migrate the tables, and explain errors."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError, RunTaken
from .location import Database

if TYPE_CHECKING:
    import psycopg

MIGRATIONS = Path(__file__).parent / "migrations"
_prepared: set[str] = set()
"""Addresses whose tables are up to date."""


@contextlib.contextmanager
def explain_errors(where: Database) -> Generator[None]:
    """Turn an error of psycopg into a `ConfigError` with advice."""
    import psycopg

    try:
        yield
    except psycopg.errors.RaiseException:
        raise RunTaken(
            f"{where}: this process had said nothing for too long, so its runs were given to another process"
        ) from None
    except psycopg.OperationalError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{where} cannot be reached: {reason}; check the address, and that the server runs") from None
    except psycopg.Error as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{where} cannot be used: {reason}") from None


def open_connection(where: Database) -> psycopg.Connection[Any]:
    """Open a connection; a process's first connection creates or migrates the tables. Raises `ConfigError`."""
    try:
        import psycopg
    except ImportError:
        raise ConfigError("a store in PostgreSQL needs more packages: pip install 'plait[postgres]'") from None
    with explain_errors(where):
        db = psycopg.connect(where.url, autocommit=True, connect_timeout=10, application_name="plait")
        try:
            if where.url not in _prepared:
                _migrate(db, where)
                _prepared.add(where.url)
        except BaseException:
            db.close()
            raise
    return db


@contextlib.contextmanager
def connected(where: Database) -> Generator[psycopg.Connection[Any]]:
    """Open a connection for a `with` block; errors become `ConfigError`."""
    with contextlib.closing(open_connection(where)) as db, explain_errors(where):
        yield db


def _migrate(db: psycopg.Connection[Any], where: Database) -> None:
    """Migrate the tables, one process at a time. Raises `ConfigError` for tables of a newer version."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(7811950)")
        db.execute("CREATE SCHEMA IF NOT EXISTS plait")
        db.execute("CREATE TABLE IF NOT EXISTS plait.migrations (version int PRIMARY KEY, at timestamptz NOT NULL)")
        row = db.execute("SELECT coalesce(max(version), 0) FROM plait.migrations").fetchone()
        version = row[0] if row is not None else 0
        # Each script runs once, in order, and never changes: to change the tables, add a script.
        scripts = sorted(MIGRATIONS.glob("*.sql"))
        if version > len(scripts):
            raise ConfigError(f"the tables of {where} are of a newer version of plait: upgrade plait")
        for number, script in enumerate(scripts[version:], version + 1):
            db.execute(script.read_bytes())
            db.execute("INSERT INTO plait.migrations VALUES (%s, now())", (number,))
