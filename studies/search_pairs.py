"""Searches on the same many puzzles, with intervals: what `ets` loses and what parallel `mcts` costs; virtual time.

    python -m studies.search_pairs [--puzzles 500] [--seed 21] [--out results] [--report]

Proposer, scorer (AUROC 0.9) and limits are those of the study `search` at 96 nodes. The puzzles are others than those
that any setting was chosen on. Differences are of the same puzzles; 95 % bootstrap intervals, puzzles drawn anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path
from statistics import fmean

from plait.apps.common.intervals import paired
from plait.core.ops import Plugin

from .search import SLOTS, Outcome, options_of, outcome_of, puzzles

__all__ = ["CELLS", "Cell", "collect", "kept_in", "page_of"]

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
        double = ("budget", 2 * (NODES // (size - 1)))
        cells[f"stride, {size} numbers, twice the children"] = Cell(size, "stride", base, options=(double,))
    cells["ets, 6 numbers, limit 144"] = Cell(6, "ets", "rebase, 6 numbers", options=(("limit", 144),))
    for width in (1, 2, 4, 8, 16):
        cells[f"mcts, {width} in flight"] = Cell(5, "mcts", "mcts, 1 in flight", width)
    rollouts = (("rollout", 4), ("explore", 1.0), ("alpha", 0.5))
    cells["mcts with rollouts of 4, 8 in flight"] = Cell(5, "mcts", "mcts, 1 in flight", 8, rollouts)
    return cells


CELLS = _cells()


def collect(kept: Path, number_of: int, seed: int) -> dict[str, list[Outcome]]:
    """Run what is missing in a file of JSON lines, and return all outcomes, puzzle by puzzle."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = {(name, i): one for name, done in kept_in(kept, seed).items() for i, one in enumerate(done)}
    with kept.open("a", encoding="utf-8") as file:
        texts = {size: puzzles(size, number_of, seed) for size in {cell.size for cell in CELLS.values()}}
        for number in range(number_of):
            for name, cell in CELLS.items():
                if (name, number) not in known:
                    text = texts[cell.size][number]
                    done = outcome_of(cell.size, cell.given(), AUROC, NODES, text, number, cell.width)
                    known[name, number] = done
                    told = {"cell": name, "puzzle": number, "seed": seed, **asdict(done)}
                    file.write(json.dumps(told) + "\n")
                    file.flush()
    return {name: [known[name, number] for number in range(number_of)] for name in CELLS}


def kept_in(kept: Path, seed: int) -> dict[str, list[Outcome]]:
    """Return what is in such a file: of each cell the puzzles from the first on."""
    known: dict[str, dict[int, Outcome]] = {name: {} for name in CELLS}
    for line in kept.read_text().splitlines() if kept.is_file() else ():
        row = json.loads(line)
        name, number, drawn = row.pop("cell"), row.pop("puzzle"), row.pop("seed")
        if drawn == seed and name in known:
            known[name][number] = Outcome(**row)
    return {name: [done[i] for i in takewhile(done.__contains__, count())] for name, done in known.items()}


def page_of(found: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| search | puzzles | right | difference in points | any right | KV ÷ | seconds | seconds ÷ | tokens |",
        "|---" * 9 + "|",
    ]
    for name, every in found.items():
        against = found[CELLS[name].against]
        n = min(len(every), len(against))
        if not n:
            continue
        done = every[:n]
        base = done if against is every else against[:n]
        by, low, high = (100 * each for each in paired(_of(done, "right"), _of(base, "right")))
        difference = "" if done is base else f"{by:+.1f} ({low:+.1f} to {high:+.1f})"
        kv, seconds = (
            "" if done is base else f"{fmean(_of(done, each)) / fmean(_of(base, each)):.2f}"
            for each in ("kv", "seconds")
        )
        shown = (
            name,
            len(done),
            f"{fmean(_of(done, 'right')):.1%}",
            difference,
            f"{fmean(_of(done, 'covered')):.1%}",
            kv,
            f"{fmean(_of(done, 'seconds')):.2f}",
            seconds,
            f"{fmean(_of(done, 'tokens')):.0f}",
        )
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines)


def _of(done: Sequence[Outcome], name: str) -> list[float]:
    return [float(getattr(each, name)) for each in done]


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m studies.search_pairs", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--report", action="store_true", help="run nothing: the table of what is there")
    given = parser.parse_args()
    kept = given.out / "records" / "search-pairs.jsonl"
    page = page_of(kept_in(kept, given.seed) if given.report else collect(kept, given.puzzles, given.seed))
    (given.out / "search-pairs.md").write_text(page + "\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
