"""What does each tree search reach for its tokens, by the quality of its scorer? In virtual time.

Selected accuracy of the tree searches against tokens, in virtual time, on Countdown.
"""

from __future__ import annotations

import json

from .._tools.command import Given, command
from .._tools.searches.cells import cells, collect, kept_in
from .._tools.searches.world import Outcome, puzzles
from .page import page_of, rows_of

__all__ = ["main", "run"]


def run(given: Given) -> str:
    """Run what is missing, write `data/search.json` and the page, and return the page. Outcomes are kept puzzle by
    puzzle, so that a stopped run resumes."""
    problems, seed = given.problems, given.common.load().seed or 0
    named = {cell.name: cell for cell in cells()}
    kept = given.records / "search.jsonl"
    if not given.report:
        texts = {size: puzzles(size, problems, seed) for size in {cell.size for cell in named.values()}}

        def one(name: str, number: int) -> Outcome:
            cell = named[name]
            return cell.run(texts[cell.size][number], number)

        collect(kept, list(named), one, problems, seed)
    rows = rows_of({named[name]: done for name, done in kept_in(kept, seed, list(named)).items()}, problems)
    lines = ",\n".join(json.dumps(row) for row in rows)
    page = given.write(page_of(rows, seed))
    (given.out / "data").mkdir(exist_ok=True)
    (given.out / "data" / "search.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return page


def main() -> None:
    """Run it in virtual time."""
    command("search", run, problems=42)
