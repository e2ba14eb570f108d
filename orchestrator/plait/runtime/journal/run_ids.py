"""Which run an id, or the beginning of one, means."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.errors import UsageError

__all__ = ["MIN_PREFIX", "check_run_id", "match_run"]

MIN_PREFIX = 4
"""Fewest characters of a run's id that may stand for it where the run is changed: a slip of the keyboard, or a variable
of a shell that is empty, cancels no run and allows no call."""


def check_run_id(run: str, *, changes: bool) -> None:
    """Raise `UsageError` for an empty id, and for one too short to stand for a longer one in what `changes` a run."""
    if not run:
        raise UsageError("the run's id is empty: give an id that `plait runs top` or `plait runs list` shows")
    if changes and len(run) < MIN_PREFIX:
        raise UsageError(
            f"{run!r} is too short to say which run to change: give at least {MIN_PREFIX} characters of its id"
        )


def match_run(run: str | None, runs: Iterable[str], *, changes: bool) -> str | None:
    """Return the id that `run` means: itself, else the only one that begins with it; for `None` the only one there.

    Args:
        run: an id or a prefix of one; `None` where the caller was given none.
        runs: the ids to choose from.
        changes: whether the run is then changed, for which a prefix needs `MIN_PREFIX` characters.

    Returns:
        `None` if there is no such run. Raises `UsageError` for a prefix that is empty, too short or not unique.
    """
    there = list(dict.fromkeys(runs))
    if run is None:
        if len(there) > 1:
            raise UsageError(f"{len(there)} runs are under way: give the id of one: {', '.join(there[:5])}")
        return next(iter(there), None)
    if run in there:
        return run
    check_run_id(run, changes=changes)
    meant = [name for name in there if name.startswith(run)]
    if len(meant) > 1:
        raise UsageError(f"{run!r} begins the ids of {len(meant)} runs: write more of it: {', '.join(meant[:5])}")
    return next(iter(meant), None)
