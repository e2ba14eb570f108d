"""Study `search`: selected accuracy of the tree searches against tokens, in virtual time, on Countdown."""

from __future__ import annotations

import json
from pathlib import Path

from .cells import cells, collect, kept_in
from .page import page_of, rows_of
from .world import Outcome, puzzles

__all__ = ["run"]


def run(out: Path, problems: int, seed: int, report: bool = False) -> str:
    """Run what is missing, write `search.json` and `search.md`, and return the page. Outcomes are kept in
    `records/search.jsonl`, puzzle by puzzle, so that a study that was stopped goes on."""
    named = {cell.name: cell for cell in cells()}
    kept = out / "records" / "search.jsonl"
    if not report:
        texts = {size: puzzles(size, problems, seed) for size in {cell.size for cell in named.values()}}

        def one(name: str, number: int) -> Outcome:
            cell = named[name]
            return cell.run(texts[cell.size][number], number)

        collect(kept, list(named), one, problems, seed)
    rows = rows_of({named[name]: done for name, done in kept_in(kept, seed, list(named)).items()}, problems)
    told = ",\n".join(json.dumps(row) for row in rows)
    (out / "search.json").write_text(f"[\n{told}\n]\n", encoding="utf-8")
    page = page_of(rows, seed)
    (out / "search.md").write_text(page, encoding="utf-8")
    return page
