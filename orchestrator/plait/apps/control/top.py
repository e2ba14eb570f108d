"""`plait runs list --live`: all running runs on this host and in the store."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..common.output import Output
from ..common.terminal import safe
from .command import processes, store_of_settings
from .distant import under_way

_INTERVAL_S = 1.0


def show_live(output: Output, follow: bool) -> None:
    """Show all running runs on this host, and in the store that `journal` names: steps, tokens per second, budgets, and
    the workers that they share. `follow`: again each second, until Ctrl-C; as JSON each snapshot is one line."""
    before: dict[str, tuple[float, int]] = {}
    if not follow:
        look = _look(before)
        show = output.people.print if output.people.is_terminal else output.print_whole
        output.result(look) if output.json else show(_shown(look))
        return
    with Live(console=output.people, auto_refresh=False, screen=output.people.is_terminal) as live:
        while True:
            look = _look(before)
            output.result(look) if output.json else live.update(_shown(look), refresh=True)
            time.sleep(_INTERVAL_S)


def _look(before: dict[str, tuple[float, int]]) -> dict[str, Any]:
    """Return the processes and their runs, with the tokens a second since the last look."""
    seen: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    now = time.monotonic()
    for _, process, listed in processes():
        seen.append({**process, "runs": len(listed)})
        for row in listed:
            rate = _rate(before, row["run"], row["tokens"], now, row["seconds"])
            rows.append({**row, "pid": process["pid"], "tokens_per_second": rate})
    if (store := store_of_settings()) is not None:
        here = {row["run"] for row in rows}
        for row in [row for row in under_way(store) if row["run"] not in here]:  # its journal lags by a batch
            rows.append({**row, "pid": None, "tokens_per_second": _rate(before, row["run"], row["tokens"], now)})
    for gone in before.keys() - {row["run"] for row in rows}:
        del before[gone]
    return {"processes": seen, "runs": rows}


def _rate(before: dict[str, tuple[float, int]], run: str, tokens: int, now: float, seconds: float = 0.0) -> float:
    """Return a run's tokens a second since the last look, or since it began, if that is known; 0 if it is not."""
    at, had = before.get(run, (now - seconds, 0 if seconds else tokens))
    before[run] = now, tokens
    return round((tokens - had) / max(0.001, now - at), 1)


def _shown(look: dict[str, Any]) -> Group:
    lines: list[Any] = []
    for process in look["processes"]:
        workers = ", ".join(f"{worker['name']} ({worker['slots']} slots)" for worker in process["workers"])
        lines.append(
            Text(safe(f"{process['pid']}  plait {' '.join(process['words'][:2])}  {process['runs']} runs  {workers}"))
        )
    rate = sum(row["tokens_per_second"] for row in look["runs"])
    lines.append(Text(f"{len(look['runs'])} runs, {rate:.1f} tokens a second", style="bold"))
    return Group(*lines, *([_table(look["runs"])] if look["runs"] else []))


def _table(rows: list[dict[str, Any]]) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in ("run", "pid", "status", "planner", "steps", "running", "tokens", "seconds", "asks", "text"):
        made.add_column(name, no_wrap=True, overflow="ellipsis", justify="left")
    for row in rows:
        cells = (
            *(row["run"][:8], str(row["pid"] or "store"), row["status"], row["planner"]),
            f"{row['done']}/{row['steps']}" if "steps" in row else "",
            *(str(row.get("running", "")), str(row["tokens"])),
            f"{row['seconds']:.1f}" if "seconds" in row else "",
            *(str(len(row.get("questions", ())) or ""), " ".join(row["text"].split())[:60]),
        )
        made.add_row(*map(safe, cells))
    return made
