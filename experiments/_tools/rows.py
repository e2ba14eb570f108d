"""An experiment whose `run()` returns the rows of one table: prints it, and writes it as JSON or Markdown if asked."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table

from .machine import machine
from .measure import Row

__all__ = ["print_rows", "show"]

HEAD = ("what", "ours", "baseline", "ours ÷ baseline", "goal")


def print_rows(name: str, module: ModuleType) -> None:
    """Run an experiment that has no options of its own, and print its table."""
    about = (module.__doc__ or "").strip()
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a page with the table here")
    given = parser.parse_args()
    rows: list[Row] = asyncio.run(module.run())
    show(name, rows)
    if given.json is not None:
        text = json.dumps([row._asdict() for row in rows], indent=1, ensure_ascii=False)
        given.json.write_text(text + "\n", encoding="utf-8")
    if given.markdown is not None:
        given.markdown.write_text(_page(name, about, rows), encoding="utf-8")


def show(name: str, rows: Sequence[Row]) -> None:
    """Print rows as a table, with the machine that they are of."""
    console = Console()
    console.print(f"{machine()} Figures: median (lowest–highest) over rounds.")
    table = Table(*HEAD, title=name.replace("_", " "))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _page(name: str, about: str, rows: Sequence[Row]) -> str:
    first, _, rest = about.partition("\n\n")
    made = f"`python -m experiments {name}`: {machine().rstrip('.')}, load {os.getloadavg()[0]:.1f} at the end."
    lines = [f"# {first.rstrip('.')}", made, *([rest] if rest else [])]
    lines.append(
        "\n".join(
            ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"] + ["| " + " | ".join(row) + " |" for row in rows]
        )
    )
    return "\n\n".join(lines) + "\n"
