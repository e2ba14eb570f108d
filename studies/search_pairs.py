"""Searches on the same many puzzles, with intervals: what `ets` loses and what parallel `mcts` costs; virtual time.

    python -m studies.search_pairs [--puzzles 500] [--seed 21] [--out results]

Proposer, scorer (AUROC 0.9) and limits are those of the study `search` at 96 nodes. The puzzles are others than those
that any setting was chosen on. Differences are of the same puzzles; 95 % bootstrap intervals, puzzles drawn anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from plait.apps.common.intervals import paired
from plait.core.ops import Plugin

from .search import SLOTS, Outcome, options_of, outcome_of, puzzles

__all__ = ["CELLS", "Cell", "collect", "page_of"]

NODES, AUROC = 96, 0.9


@dataclass(frozen=True)
class Cell:
    """One contender at one size of puzzle."""

    size: int
    search: str
    against: str
    """Name of the cell that it is compared with; its own for the baseline."""
    width: int = SLOTS
    options: tuple[tuple[str, object], ...] = ()
    """Of the search, beside those of the study."""

    def given(self) -> dict[str, object]:
        """Return the options of the planner."""
        given = options_of(self.search, NODES, self.size - 1)
        search = Plugin.model_validate(given["search"])
        return {**given, "search": Plugin(name=search.name, options={**search.options, **dict(self.options)})}  # type: ignore[dict-item]


def _cells() -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for size in (4, 5, 6):
        base = f"rebase, {size} numbers"
        for search in ("rebase", "stride", "ets"):
            cells[f"{search}, {size} numbers"] = Cell(size, search, base)
    cells["ets, 6 numbers, limit 144"] = Cell(6, "ets", "rebase, 6 numbers", options=(("limit", 144),))
    for width in (1, 2, 4, 8, 16):
        cells[f"mcts, {width} in flight"] = Cell(5, "mcts", "mcts, 1 in flight", width)
    return cells


CELLS = _cells()


def collect(kept: Path, count: int, seed: int) -> dict[str, list[Outcome]]:
    """Run what is missing in a file of JSON lines, and return all outcomes, puzzle by puzzle."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[str, int], Outcome] = {}
    if kept.is_file():
        for line in kept.read_text().splitlines():
            row = json.loads(line)
            if row.pop("seed") == seed:
                key = (row.pop("cell"), row.pop("puzzle"))
                known[key] = Outcome(**row)
    with kept.open("a", encoding="utf-8") as file:
        texts = {size: puzzles(size, count, seed) for size in {cell.size for cell in CELLS.values()}}
        for number in range(count):
            for name, cell in CELLS.items():
                if (name, number) not in known:
                    text = texts[cell.size][number]
                    done = outcome_of(cell.size, cell.given(), AUROC, NODES, text, number, cell.width)
                    known[name, number] = done
                    told = {"cell": name, "puzzle": number, "seed": seed, **asdict(done)}
                    file.write(json.dumps(told) + "\n")
                    file.flush()
    return {name: [known[name, number] for number in range(count)] for name in CELLS}


def page_of(found: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| search | right | difference in points | any right | KV ÷ | seconds | seconds ÷ | tokens | nodes |",
        "|---" * 9 + "|",
    ]
    for name, done in found.items():
        base = found[CELLS[name].against]
        by, low, high = (100 * each for each in paired(_of(done, "right"), _of(base, "right")))
        difference = "" if done is base else f"{by:+.1f} ({low:+.1f} to {high:+.1f})"
        kv, seconds = (
            "" if done is base else f"{fmean(_of(done, each)) / fmean(_of(base, each)):.2f}"
            for each in ("kv", "seconds")
        )
        lines.append(
            f"| {name} | {fmean(_of(done, 'right')):.1%} | {difference} | {fmean(_of(done, 'covered')):.1%} | {kv} | "
            f"{fmean(_of(done, 'seconds')):.2f} | {seconds} | {fmean(_of(done, 'tokens')):.0f} | "
            f"{fmean(_of(done, 'nodes')):.0f} |"
        )
    return "\n".join(lines)


def _of(done: Sequence[Outcome], name: str) -> list[float]:
    return [float(getattr(each, name)) for each in done]


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.search_pairs", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    page = page_of(collect(given.out / "records" / "search-pairs.jsonl", given.puzzles, given.seed))
    (given.out / "search-pairs.md").write_text(page + "\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
