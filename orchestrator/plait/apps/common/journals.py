"""Which journals a command reads: those of `--from`, or the one that holds a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.journal.directory import entries, find, place
from ...runtime.journal.location import Location, located

Place = Annotated[
    str | None,
    typer.Option("--from", metavar="PATH", help="Journal, folder or store; that of the settings by default."),
]


def place_of(given: str | None) -> Location:
    """Return the journals that `--from` names, or those of the settings. Raises `UsageError` if none exist."""
    journals = located(given) if given is not None else place(Config.load())
    if given is not None and isinstance(journals, Path) and not journals.exists():
        raise UsageError(f"{given} does not exist: name a journal or a folder of journals")
    return journals


def journal_of(run: str, where: Location) -> tuple[Location, str | None]:
    """Return a journal, and the id of the selected run (`None`: the last).

    `run` is a file, or the id of a run (or how it begins) in the journals at `where`; empty, the newest run there.
    Raises `UsageError` if no run exists.
    """
    path = Path(run).expanduser()
    if run and path.is_file():
        return path, None
    if not run:
        newest = next(entries(where), None)
        if newest is None:
            raise UsageError(f"there is no run in {where}: name a run or the file of a journal")
        return newest.path, newest.run
    try:
        entry = find(where, run)
    except UsageError as error:
        raise UsageError(f"{error}; or name the file of a journal") from None
    return entry.path, entry.run
