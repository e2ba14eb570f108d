"""The page of the study `search`: Markdown tables made of its rows, which are in `search.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.apps.common.intervals import wilson

from .._tools.searches.cells import METHODS, Cell, mean_of, of
from .._tools.searches.script import RIGHT
from .._tools.searches.world import SLOTS, Outcome
from .._tools.statistics import difference

__all__ = ["page_of", "rows_of"]

Row = dict[str, Any]


def rows_of(found: Mapping[Cell, Sequence[Outcome]], problems: int) -> list[Row]:
    """Return a row of each cell over the puzzles that all cells have, at most `problems`.

    Differences in accuracy are of the same puzzles: to best-of-N at the same scorer, and to a majority vote; with 95 %
    exact intervals.
    """
    count = min([problems, *map(len, found.values())])
    rows: list[Row] = []
    for cell, every in found.items() if count else ():
        done = every[:count]
        low, high = wilson(sum(each.right for each in done), count)
        row: Row = {"numbers": cell.size, "method": cell.method, "auroc": cell.auroc, "nodes": cell.nodes}
        row |= {"puzzles": count, "accuracy": _rounded(mean_of(done, "right"), low, high)}
        row |= {name: round(mean_of(done, name), 4) for name in ("covered", "tokens", "seconds", "kv")}
        for name, other in (
            ("best-of-n", Cell(cell.size, "best-of-n", cell.auroc, cell.nodes)),
            ("majority", Cell(cell.size, "majority", 0.5, cell.nodes)),
        ):
            if other != cell and other in found:
                row[f"less {name}"] = _rounded(*difference(of(done, "right"), of(found[other][:count], "right")))
        rows.append(row)
    return rows


def _rounded(*values: float) -> list[float]:
    return [round(each, 4) for each in values]


def page_of(rows: Sequence[Row], seed: int) -> str:
    """Return the tables as Markdown."""
    problems = rows[0]["puzzles"] if rows else 0
    lines = [
        "# Tree searches on Countdown, in virtual time",
        "",
        f"A scripted proposer (a good move with probability {RIGHT} beside what chance gives) and a scorer of known "
        "quality: this says how each search spends tokens, and nothing about any model's reasoning. "
        f"{problems} puzzles a cell, the same for every method; {SLOTS} slots of 50 tokens a second each. Every method "
        "has the same number of nodes, so about the same tokens; tokens include cancelled ones, the scorer costs none. "
        "KV: resident tokens of live paths over time. In brackets: 95 % intervals; those of differences are "
        "bootstrapped by puzzle, since outcomes were not kept, but exact where no puzzle differs.",
        "",
        f"`python -m experiments search --problems {problems} --seed {seed}`",
        "",
    ]
    for size in sorted({row["numbers"] for row in rows}):
        for most in sorted({row["nodes"] for row in rows}, reverse=True):
            chosen = [row for row in rows if row["numbers"] == size and row["nodes"] == most]
            lines += [f"## {size} numbers, {most} nodes", "", *_table(chosen), ""]
    return "\n".join([*lines, "## AUROC .5: no gain", "", *_no_gain(rows), ""])


def _table(rows: Sequence[Row]) -> list[str]:
    aurocs = sorted({row["auroc"] for row in rows if row["method"] != "majority"})
    head = ("search", *(f"A={each}" for each in aurocs), "less best-of-N", "any right", "tokens", "seconds", "KV")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for method in METHODS:
        mine = {row["auroc"]: row for row in rows if row["method"] == method}
        if not mine:
            continue
        at = mine.get(0.9) or next(iter(mine.values()))
        if method == "majority":
            shown = [_share(at["accuracy"]), *[""] * (len(aurocs) - 1)]
        else:
            shown = [_share(mine[each]["accuracy"]) if each in mine else "" for each in aurocs]
        against = _points(at["less best-of-n"]) if "less best-of-n" in at and method != "majority" else ""
        kv = f"{at['kv']:.0f}" if at["kv"] else ""
        cells_ = (against, _covered(at), f"{at['tokens']:.0f}", f"{at['seconds']:.1f}", kv)
        lines.append(f"| {' | '.join((method, *shown, *cells_))} |")
    scorer = "a majority vote has no scorer" if len(aurocs) == 1 else "the first column is a majority vote"
    return [*lines, "", f"Selected accuracy. Later columns are at A=0.9; {scorer}."]


def _no_gain(rows: Sequence[Row]) -> list[str]:
    """Return each method's difference to a majority vote where the scorer tells nothing."""
    mine = [row for row in rows if row["auroc"] == 0.5 and "less majority" in row]
    sizes = sorted({row["numbers"] for row in mine})
    lines = [
        "| search | " + " | ".join(f"{size} numbers" for size in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for method in METHODS:
        cells_ = {row["numbers"]: _points(row["less majority"]) for row in mine if row["method"] == method}
        if cells_:
            lines.append(f"| {method} | {' | '.join(cells_[size] for size in sizes)} |")
    above = [row for row in mine if row["less majority"][1] > 0]
    said = ", ".join(f"{row['method']} at {row['numbers']} numbers" for row in above) or "none"
    return [
        "Accuracy less that of a majority vote on the same puzzles, in points; 96 nodes, a scorer that tells nothing.",
        "",
        *lines,
        "",
        f"{len(above)} of {len(mine)} are better than a majority vote beyond the interval: {said}.",
    ]


def _covered(row: Row) -> str:
    """Return how often any of a method's answers is right."""
    count = row["puzzles"]
    return _share([row["covered"], *wilson(round(row["covered"] * count), count)])


def _share(estimate: Sequence[float]) -> str:
    value, low, high = (100 * each for each in estimate)
    return f"{value:.0f}% ({low:.0f}–{high:.0f})"


def _points(estimate: Sequence[float]) -> str:
    by, low, high = (100 * each for each in estimate)
    return f"{by:+.0f} ({low:+.0f} to {high:+.0f})"
