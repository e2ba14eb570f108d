"""Which journals a command reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.journal.location import Location, located
from ...runtime.journal.sessions import place

__all__ = ["Place", "place_of"]

Place = Annotated[
    str | None,
    typer.Option("--from", metavar="PATH", help="A journal, a folder or a store; the default one if left out."),
]


def place_of(given: str | None) -> Location:
    """Return the journals that `--from` names, or those of the settings. Raises `UsageError` if there are none."""
    found = located(given) if given is not None else place(Config.load())
    if given is not None and isinstance(found, Path) and not found.exists():
        raise UsageError(f"{given} does not exist: name a journal or a folder of journals")
    return found
