"""Finds the journal that a command means: a file, or the one that holds a run of the given id."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.journal.directory import default_folder, entries, find as find_run

__all__ = ["find"]


def find(run: str, config: Config, only: str | None = None) -> tuple[Path, str | None]:
    """Return a journal, and which run of it is meant (`None`: the last).

    `run` is a file, or the id of a run (or how it begins) in the folder of journals; empty, the newest run there.
    Raises `UsageError` if there is none.
    """
    path = Path(run).expanduser()
    if run and path.is_file():
        return path, only
    if only is not None:
        raise UsageError(f"--run {only} chooses a run of a journal, but {run or 'nothing'} is no file")
    place = config.journal if isinstance(config.journal, Path) else default_folder()
    if not run:
        newest = next(entries(place), None)
        if newest is None:
            raise UsageError(f"there is no run in {place}: name a run or the file of a journal")
        return newest.path, newest.run
    try:
        entry = find_run(place, run)
    except UsageError as error:
        raise UsageError(f"{error}; or name the file of a journal") from None
    return entry.path, entry.run
