"""Is a model cheaper after training on its own shortest verified threads?

The commands are those of `python -m training.shortest`: `problems`, `train`, `evaluate`; `--out` writes the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments._tools.base import Table
from experiments._tools.machine import machine
from experiments._tools.page import contents, put
from training import shortest

__all__ = ["main", "write"]


def write(folders: Sequence[Path], runs: shortest.Runs, about: str, command: str, out: Path) -> Path:
    """Write `data/shortest.json` and the page made of it into a folder; return the page."""
    claims, rows, figures = shortest.findings(folders, runs)
    columns = ("way", "model", "n", "solved (95 % interval)", "total tokens", "critical path", "threads")
    note = "Means over problems. Tokens are those generated, in threads that were stopped early too."
    page = contents(
        name="shortest", title="Retrained on its own shortest threads",
        question="Does supervised training on a model's own verified shortest runs make it cheaper at equal accuracy?",
        command=command, machine=[machine()], about=about, claims=claims,
        tables=[Table("Held-out problems, on the engine", columns, rows, note)], plots=[], theirs="", figures=figures,
    )  # fmt: skip
    return put(page, out)


def main() -> None:
    """Run the command."""
    shortest.main(write=write)
