"""`plait runs list`: the newest runs that were written down. A file of its own, for it needs no orchestrator."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer
from rich.table import Table
from rich.text import Text

from ...core.errors import UsageError
from ...core.messages import did_you_mean
from ...runtime.journal.directory import RunEntry, RunStatus, entries
from ..common.journals import Place, place_of
from ..common.output import Json, Output, opened

_STATUSES: tuple[str, ...] = get_args(RunStatus)
STYLES = {"done": "green", "partial": "yellow", "failed": "red", "cancelled": "yellow", "interrupted": "magenta"}
"""By status: its colour."""


def listing(
    place: Place = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of runs, the newest first.")] = 20,
    status: Annotated[str | None, typer.Option(help="Status of the runs, such as `interrupted`.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Running runs instead: steps, tokens per second, budgets and workers.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With --live: refresh until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """List the newest runs in the journals, or the running ones: id, time, status, planner, tokens, text."""
    if follow and not live:
        raise UsageError("--follow goes with --live; one run is followed by `plait runs show RUN --follow`")
    if live:
        from ..control.command import show_live  # loads what steers runs

        with opened(as_json) as output:
            show_live(output, follow)
        return
    if status not in (None, *_STATUSES):
        near = did_you_mean(status, _STATUSES)
        raise UsageError(f"no run has the status {status!r}{near}: there are {', '.join(_STATUSES)}")
    where = place_of(place)
    with opened(as_json) as output:
        listed: list[RunEntry] = []
        unread: list[str] = []
        for entry in entries(where, unread):
            if status is None or entry.status == status:
                listed.append(entry)
            if len(listed) == limit:
                break
        if as_json:
            output.result({"runs": [_plain(entry) for entry in listed], "unread": unread})
            return
        for problem in unread:
            output.people.print(problem, style="yellow", markup=False, highlight=False, soft_wrap=True)
        if not listed:
            output.people.print(f"no runs in {where}", markup=False)
            return
        _table(listed, output)


def _plain(entry: RunEntry) -> dict[str, Any]:
    return {
        "run": entry.run,
        "status": entry.status,
        "planner": entry.planner,
        "tokens": entry.tokens,
        **about(entry),
    }


def about(entry: RunEntry) -> dict[str, Any]:
    """Return a run's start time, question and status."""
    return {"created": entry.created.isoformat(), "text": entry.text, "journal": str(entry.path)}


_PIPED = 160
"""Columns of a table that no terminal shows."""


def _table(listed: list[RunEntry], output: Output) -> None:
    table = Table(box=None, pad_edge=False)
    piped = not output.people.is_terminal  # a program reads it: ids are whole, and no column is left out
    for name, options in {
        "run": {"no_wrap": True, "min_width": 32 if piped else 8},
        "when": {"no_wrap": True, "min_width": 16},
        "status": {"no_wrap": True, "min_width": 6},
        "planner": {"no_wrap": True, "overflow": "ellipsis", "max_width": 14},
        "tokens": {"justify": "right", "no_wrap": True, "min_width": 6},
        "asked": {"no_wrap": True, "overflow": "ellipsis", "ratio": 1},
    }.items():
        table.add_column(name, **options)  # pyright: ignore[reportArgumentType]
    for entry in listed:
        table.add_row(
            entry.run,
            f"{entry.created.astimezone():%Y-%m-%d %H:%M}",
            Text(entry.status, style=STYLES.get(entry.status, "")),
            Text(entry.planner),
            str(entry.tokens) if entry.tokens else "-",
            Text(" ".join(entry.text.split()) or "-", style="dim"),
        )
    if piped:
        output.people.width = max(output.people.width, _PIPED)
    output.people.print(table)
