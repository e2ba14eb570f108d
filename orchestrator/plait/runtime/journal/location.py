"""Where journals are: a file, a folder of files, or a store in PostgreSQL."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ...core.errors import ConfigError

SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class Database:
    """A store in PostgreSQL: all journals in it, or the one numbered `journal`."""

    url: str = field(repr=False)
    """As libpq takes it; it may hold a password, which is never shown."""
    journal: int | None = None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Keep objects unchanged in models; in JSON, write the address without its password."""
        return core_schema.is_instance_schema(
            cls, serialization=core_schema.to_string_ser_schema(when_used="json-unless-none")
        )

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        where = parts.hostname or ""
        where += f":{parts.port}" if parts.port else ""
        return f"postgresql://{where}{parts.path}" + (f"#{self.journal}" if self.journal is not None else "")

    @property
    def name(self) -> str:
        """Its name in messages."""
        return str(self)

    def numbered(self, journal: int) -> Database:
        """Return one journal of the store."""
        return Database(self.url, journal)


Location = Path | Database


def located(given: str | os.PathLike[str] | Database) -> Location:
    """Return the location for a path or a URL. Raises `ConfigError` for an invalid URL."""
    if isinstance(given, Database):
        return given
    if not isinstance(given, str) or not given.startswith(SCHEMES):
        return Path(given)
    address, _, number = given.partition("#")
    try:
        urlsplit(address).port  # noqa: B018
    except ValueError:
        raise ConfigError("this is not the URL of a store. Example: postgresql://user@host:5432/database") from None
    if number and not number.isdigit():
        raise ConfigError(f"#{number:.20} is not the number of a journal: `plait runs list` shows them")
    return Database(address, int(number) if number else None)
