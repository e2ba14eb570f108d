"""What does `ets` lose and what does parallel `mcts` cost, on the same many puzzles? In virtual time.

Searches on the same many puzzles, with intervals: what `ets` loses and what parallel `mcts` costs; virtual time.

    python -m experiments search_pairs [--puzzles 500] [--seed 21] [--out FOLDER] [--report]

Proposer, scorer (AUROC 0.9) and limits are those of the study `search` at 96 nodes. The puzzles are others than those
that any setting was chosen on. Differences are of the same puzzles; 95 % bootstrap intervals, puzzles resampled.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.core.ops import Plugin
from plait_bench.tasks.countdown import Countdown

from .._tools.searches.cells import collect, kept_in, mean_of, of, options_of, planned
from .._tools.searches.script import Noisy, Script
from .._tools.searches.world import SLOTS, Outcome, outcome_of, puzzles
from .._tools.statistics import difference

__all__ = ["CELLS", "Cell", "page_of"]

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

    def run(self, text: str, number: int) -> Outcome:
        """Run it on a puzzle; `number` is the seed."""
        task, scorer = Countdown(text=text, count=self.size, any_width=True), Noisy(auroc=AUROC)
        planner = planned(self.given(), self.size, NODES, scorer=scorer, n=self.width)
        return outcome_of(task, planner, Script(task, scorer), number)


def _cells() -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for size in (4, 5, 6):
        base = f"rebase, {size} numbers"
        for search in ("rebase", "stride", "ets"):
            cells[f"{search}, {size} numbers"] = Cell(size, search, base)
        double = ("per_depth", 2 * (NODES // (size - 1)))
        cells[f"stride, {size} numbers, twice the children"] = Cell(size, "stride", base, options=(double,))
    cells["ets, 6 numbers, limit 144"] = Cell(6, "ets", "rebase, 6 numbers", options=(("limit", 144),))
    for width in (1, 2, 4, 8, 16):
        cells[f"mcts, {width} in flight"] = Cell(5, "mcts", "mcts, 1 in flight", width)
    rollouts = (("rollout", 4), ("explore", 1.0), ("growth", 0.5))
    cells["mcts with rollouts of 4, 8 in flight"] = Cell(5, "mcts", "mcts, 1 in flight", 8, rollouts)
    return cells


CELLS = _cells()


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
        by, low, high = (100 * each for each in difference(of(done, "right"), of(base, "right")))
        shown_difference = "" if done is base else f"{by:+.1f} ({low:+.1f} to {high:+.1f})"
        kv, seconds = (
            "" if done is base else f"{mean_of(done, each) / mean_of(base, each):.2f}" for each in ("kv", "seconds")
        )
        shown = (
            name,
            len(done),
            f"{mean_of(done, 'right'):.1%}",
            shown_difference,
            f"{mean_of(done, 'covered'):.1%}",
            kv,
            f"{mean_of(done, 'seconds'):.2f}",
            seconds,
            f"{mean_of(done, 'tokens'):.0f}",
        )
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines)


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments search_pairs", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("build/experiments/search_pairs"))
    parser.add_argument("--report", action="store_true", help="run nothing: the table of what is there")
    given = parser.parse_args()
    kept = given.out / "records" / "search_pairs.jsonl"
    if not given.report:
        texts = {size: puzzles(size, given.puzzles, given.seed) for size in (4, 5, 6)}

        def run(name: str, number: int) -> Outcome:
            return CELLS[name].run(texts[CELLS[name].size][number], number)

        collect(kept, list(CELLS), run, given.puzzles, given.seed)
    page = page_of(kept_in(kept, given.seed, list(CELLS)))
    (given.out / "README.md").write_text(page + "\n", encoding="utf-8")
    print(page)
