"""Does the committed command make a model as good as the shipped one?

Trains the bundled model again and compares the two. The options are those of `python -m training reproduce`; the page
is written here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments._tools.base import Table
from experiments._tools.machine import machine
from experiments._tools.page import contents, put
from training import compare
from training.__main__ import main as training

__all__ = ["main", "write"]


def write(pairs: Sequence[compare.Pair], facts: Sequence[dict[str, Any]], command: str, out: Path) -> Path:
    """Write `data/retraining.json` and the page made of it into a folder; return the page."""
    claims, rows, figures = compare.findings(pairs)
    columns = ("mode", "n", *compare.NAMES, "retrained − shipped", "within the shipped one's interval")
    note = (
        "Solved, checked by exact arithmetic; 95 % Wilson intervals. Both models had the same problems, so their "
        "difference is paired by problem; its interval is that of Bonett and Price (2012)."
    )
    names = ("steps", "tokens", "seconds", "seed")
    runs = [
        [name, *(f"{fact[key]:,}" if key in fact else "" for key in names)]
        for name, fact in zip(compare.NAMES, facts, strict=True)
    ]
    times = "Seconds are wall-clock, with whatever else the machine did meanwhile, and with pauses."
    tables = [Table("Solved", columns, rows, note), Table("Training", ("model", *names), runs, times)]
    page = contents(
        name="retraining",
        title="Retraining from scratch",
        question="Does the committed command make a model as good as the shipped one?",
        command=command,
        machine=[machine()],
        about="Held-out problems: no model was trained on their numbers, with any target.",
        claims=claims,
        tables=tables,
        plots=[],
        theirs="",
        figures={"modes": figures, "training": dict(zip(compare.NAMES, facts, strict=True))},
    )
    return put(page, out)


def main() -> None:
    """Train, compare, and write the page."""
    training(["reproduce", *sys.argv[1:]], write)
