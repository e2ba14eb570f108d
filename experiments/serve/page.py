"""The page of what the server adds: made of its rows and nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plait.core.messages import pluralise

from .._tools.measure import spread

__all__ = ["page_of"]

Row = dict[str, Any]
PARTS = {
    ("token", "CPU"): ("CPU of one more token of an answer", 1e6, "µs"),
    ("added", "p50"): ("time added at p50", 1e3, "ms"),
    ("added", "p99"): ("time added at p99", 1e3, "ms"),
    ("added", "CPU"): ("CPU of a request", 1e3, "ms"),
    ("clients", "p50"): ("p50", 1.0, "s"),
    ("clients", "p99"): ("p99", 1.0, "s"),
    ("clients", "CPU"): ("CPU of a request", 1e3, "ms"),
}
"""The report of each part: its words, and the unit with how many of it make a second."""
ABOUT = """# What does the server add to the upstream's time, how many clients does it bear, does its memory grow?

An upstream that streams a chat completion of 32 tokens, 20 ms apart; before it a bare pass-through (starlette and
httpx, bytes as they come) and `plait serve` (planner `single`, worker `http`). All of it, and the clients, on the same
cores.

`python -m experiments serve`

Median (lowest–highest) over rounds; ratios are taken within a round. Below 1 plait takes less.
"""
HEAD = """
| figure | clients | plait | pass-through | plait ÷ pass-through | rounds | failed of plait, of the other | load |
|---|---|---|---|---|---|---|---|"""
SITUATIONS = {
    "tenant": "## With a key\n\nThe server has a tenant, and the clients send its key (`--situation tenant`).",
    "busy": "## Beside another tenant\n\nThree clients of another tenant ask at once. The CPU that they take is "
    "counted here as the others' (`--situation busy`).",
}


def page_of(lines: Sequence[str], with_keys: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the page as Markdown. `with_keys`: the rows of servers with keys, by situation."""
    rows: list[Row] = [json.loads(line) for line in lines]
    grown = [row for row in rows if row["what"] == "memory"]
    page = [ABOUT.rstrip("\n"), HEAD, *_figures(rows), "", *(_memory(grown) if len(grown) > 3 else []), ""]
    for name, own in (with_keys or {}).items():
        page += [SITUATIONS[name], HEAD, *_figures([json.loads(line) for line in own]), ""]
    return "\n".join(page)


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    for (what, part), (words, times, unit) in PARTS.items():
        some = [row for row in rows if row["what"] == what]
        for clients in sorted({row["clients"] for row in some}):
            ours, theirs = (
                [row for row in some if row["clients"] == clients and row["through"] == name]
                for name in ("plait", "pass-through")
            )
            pairs = list(zip(ours, sorted(theirs, key=lambda row: [each["round"] for each in ours].index(row["round"])),
                             strict=True))  # fmt: skip
            cells = [f"{spread([times * row[part] for row in side])} {unit}" for side in (ours, theirs)]
            ratio = spread([a[part] / b[part] for a, b in pairs])
            lost = ", ".join(str(sum(row.get("failed", 0) for row in side)) for side in (ours, theirs))
            load = statistics.median(row["load"] for row in [*ours, *theirs])
            yield f"| {words} | {clients} | {' | '.join(cells)} | {ratio} | {len(pairs)} | {lost} | {load:.0f} |"


def _memory(rows: Sequence[Row]) -> Iterator[str]:
    half = rows[len(rows) // 2 :]
    slope = statistics.linear_regression([row["requests"] for row in half], [row["bytes"] for row in half]).slope
    ends = " and ".join(f"{row['bytes'] / 2**20:.1f} MiB after {row['requests']:,}" for row in (rows[0], rows[-1]))
    lost = pluralise(sum(row["failed"] for row in rows), "request")
    yield (
        f"Memory before a scripted worker: {ends} requests, {slope:.0f} bytes a request in the second half; "
        f"{lost} failed."
    )
