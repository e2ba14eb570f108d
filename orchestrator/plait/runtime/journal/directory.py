"""Lists the recorded runs in a folder of journals or a store, and deletes old journals.

In a folder, each session has its own file, named by its start time. The file's index shows whether a run has ended; the
claim on the file shows whether a process runs it. This module does not read a run's events.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ...core.errors import ConfigError, UsageError
from ...core.messages import pluralise
from ..client.config import Config
from .journal import Journal
from .location import Database, Location
from .sqlite import claimed
from .tables import RunLine

SUFFIX = ".plait"
MIN_PREFIX = 4
"""Minimum length of a prefix of a run's id for commands that change the run: a typing error or an empty shell variable
must not cancel a run or approve a call."""
KEEP_FILES = 1000
KEEP_BYTES = 1 << 30
KEEP_DAYS_INTERRUPTED = 30.0
"""Maximum files and bytes, above which the oldest journals are deleted automatically, and minimum days of keeping an
interrupted run."""
_PAGE = 50
"""Runs that are read at once."""
_BEING_MADE = 60.0
"""Age in seconds up to which an empty file may be under creation."""

RunStatus = Literal["done", "partial", "failed", "cancelled", "running", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run of a journal."""

    run: str
    path: Location
    """Its journal."""
    created: datetime
    """Time of submission (UTC)."""
    status: str
    """State. `running`: a process is writing the journal; `interrupted`: no process is, and the run has no end."""
    planner: str
    tokens: int
    text: str
    """The beginning of the question."""
    share: str | None = None
    """The run's `Request.fairness_group`; `None` in a file, whose index lacks it."""
    ended: str | None = None
    """Time of the end, UTC, ISO 8601; `None` for an active run."""


def default_folder() -> Path:
    """Return the folder for journals: `plait/runs` in `XDG_STATE_HOME`, by default `~/.local/state`."""
    given = os.environ.get("XDG_STATE_HOME", "")
    home = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    return home / "plait" / "runs"


def place(config: Config) -> Location:
    """Return the folder, file or store for the runs of a configuration."""
    return config.journal if isinstance(config.journal, Path | Database) else default_folder()


def new_file(folder: Path) -> Path:
    """Return the path of a new session's journal and create the folder. Raises `ConfigError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"the folder for journals {folder} cannot be made ({error.strerror}): name another with `journal`, or "
            "switch it off with journal=off"
        ) from None
    return folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}-{secrets.token_hex(2)}{SUFFIX}"


def journals(place: Path) -> list[Path]:
    """Return the journals of a folder, newest first, or `place` itself if it is a journal."""
    if not place.is_dir():
        return [place] if place.exists() else []
    paths = (path for path in place.iterdir() if path.suffix == SUFFIX and path.is_file())
    return sorted(paths, key=lambda path: path.name, reverse=True)


def entries(place: Location, unread: list[str] | None = None, like: str = "") -> Iterator[RunEntry]:
    """Yield the runs of a folder, a file or a store, the newest first. `like`: only runs with this id prefix.
    Unreadable files are skipped, and the reason is added to `unread`. Empty files in a folder are skipped silently."""
    if isinstance(place, Database):
        from . import store

        for line, journal, alive, share in store.lines(place, like):
            yield _entry(journal, line, alive, share)
        return
    for path in journals(place):
        try:
            yield from _entries_of(path, like)
        except ConfigError as error:
            if unread is not None and (path == place or not _empty(path)):
                unread.append(str(error))


def check_run_id(run: str, *, changes: bool) -> None:
    """Raise `UsageError` for an empty id, and with `changes` for a prefix that is too short to change a run."""
    if not run:
        raise UsageError("the run's id is empty: give an id that `plait runs list` shows")
    if changes and len(run) < MIN_PREFIX:
        raise UsageError(
            f"{run!r} is too short to say which run to change: give at least {MIN_PREFIX} characters of its id"
        )


def match_run(run: str | None, runs: Iterable[str], *, changes: bool) -> str | None:
    """Return the id that equals `run`, else the only id with the prefix `run`; for `None`, the only id.

    Args:
        run: an id or a prefix of one; `None` where the caller was given none. runs: the ids to choose from. changes:
        whether the caller changes the run; a prefix then needs `MIN_PREFIX` characters.

    Returns:
        `None` if there is no such run. Raises `UsageError` for a prefix that is empty, too short or not unique.
    """
    there = list(dict.fromkeys(runs))
    if run is None:
        if len(there) > 1:
            raise UsageError(f"{len(there)} runs are active: give the id of one: {', '.join(there[:5])}")
        return next(iter(there), None)
    if run in there:
        return run
    check_run_id(run, changes=changes)
    meant = [name for name in there if name.startswith(run)]
    if len(meant) > 1:
        raise UsageError(f"{run!r} begins the ids of {len(meant)} runs: write more of it: {', '.join(meant[:5])}")
    return next(iter(meant), None)


def find(place: Location, run: str, *, changes: bool = False) -> RunEntry:
    """Return the run whose id is `run`, else the only run with this id prefix. `changes`: the caller changes the run,
    which needs a longer prefix. Raises `UsageError` if no run or several match."""
    entries_there: list[RunEntry] = []
    run = run.encode(errors="replace").decode()  # no id contains a lone surrogate, and databases reject it
    for entry in entries(place, like=run):
        if entry.run == run:
            return entry
        if entry.run.startswith(run):
            entries_there.append(entry)
    check_run_id(run, changes=changes)
    if len(entries_there) == 1:
        return entries_there[0]
    if not entries_there:
        unread: list[str] = []
        for _ in entries(place, unread):
            pass
        beside = f"; {pluralise(len(unread), 'journal')} there cannot be read: {unread[0]}" if unread else ""
        raise UsageError(f"there is no run {run!r} in {place}: `plait runs list` shows those that are there{beside}")
    several = ", ".join(entry.run for entry in entries_there[:5])
    raise UsageError(f"{run!r} begins the ids of {len(entries_there)} runs ({several}): write more of it")


def sweep(
    folder: Location, *, keep: int | None = None, older_than: float | None = None, interrupted: bool = False
) -> tuple[list[Location], int]:
    """Delete journals that no process is writing: all but the newest `keep` files, and files without a write for
    `older_than` seconds. Keep a journal with an interrupted run unless `interrupted`; always delete empty journals.

    In a store, delete ended runs, by their age since the end. Return the deleted journals and the freed bytes.
    """
    gone: list[Location] = []
    if isinstance(folder, Database):
        from . import store

        gone_there, freed = store.sweep(folder, keep=keep, older_than=older_than, interrupted=interrupted)
        return [*gone, *gone_there], freed
    now = datetime.now(UTC).timestamp()
    freed = 0
    for place, path in enumerate(journals(folder)):
        many = keep is not None and place >= keep
        old = older_than is not None and now - _written(path) > older_than
        if (many or old or _empty(path)) and _may_go(path, interrupted):
            freed += _delete(path)
            gone.append(path)
    return gone, freed


def tidy(folder: Path) -> None:
    """Keep the folder within its limits: delete the oldest journals first, interrupted runs only when they are old."""
    now = datetime.now(UTC).timestamp()
    size = 0
    for place, path in enumerate(journals(folder)):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
            if (place >= KEEP_FILES or size > KEEP_BYTES) and _may_go(
                path, interrupted=now - _written(path) > KEEP_DAYS_INTERRUPTED * 86_400
            ):
                _delete(path)


def _entries_of(path: Path, like: str) -> Iterator[RunEntry]:
    journal, before, busy = Journal(path), None, None
    while True:
        lines = journal.newest(before, like, _PAGE)
        for line in lines:
            if line.status is None and busy is None:
                busy = claimed(path)
            yield _entry(path, line, bool(busy))
        if len(lines) < _PAGE:
            return
        before = lines[-1].first


def _entry(path: Location, line: RunLine, busy: bool, share: str | None = None) -> RunEntry:
    status = line.status or ("running" if busy else "interrupted")
    try:
        created = datetime.fromisoformat(line.created)
    except (TypeError, ValueError):
        raise ConfigError(f"{path} is damaged: its index has no date for run {line.run!r}") from None
    return RunEntry(line.run, path, created, status, line.planner, line.tokens, line.text, share, line.ended)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _empty(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size == 0
    except OSError:
        return False


def _may_go(path: Path, interrupted: bool) -> bool:
    if not path.is_file() or claimed(path):
        return False
    if _empty(path):
        return datetime.now(UTC).timestamp() - _written(path) > _BEING_MADE
    try:
        return interrupted or all(line.status is not None for line in Journal(path).runs())
    except ConfigError:
        return interrupted  # unreadable: a person must decide whether the file is needed


def _delete(path: Path) -> int:
    freed = 0
    for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with contextlib.suppress(OSError):
            size = file.stat().st_size
            file.unlink()
            freed += size
    return freed
