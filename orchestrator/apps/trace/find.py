"""Finds the journal that a command means: a file, or the one that holds a run of the given id."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.journal.directory import entries, find as find_run
from ...runtime.journal.location import Location
from ...runtime.journal.sessions import place

__all__ = ["find"]


def find(run: str, config: Config, only: str | None = None) -> tuple[Location, str | None]:
    """Return a journal, and which run of it is meant (`None`: the last).

    `run` is a file, or the id of a run (or how it begins) in the folder of journals; empty, the newest run there.
    Raises `UsageError` if there is none.
    """
    path = Path(run).expanduser()
    if run and path.is_file():
        return path, only
    if only is not None:
        raise UsageError(f"--run {only} chooses a run of a journal, but {run or 'nothing'} is no file")
    where = place(config)
    if not run:
        newest = next(entries(where), None)
        if newest is None:
            raise UsageError(f"there is no run in {where}: name a run or the file of a journal")
        return newest.path, newest.run
    try:
        entry = find_run(where, run)
    except UsageError as error:
        raise UsageError(f"{error}; or name the file of a journal") from None
    return entry.path, entry.run
