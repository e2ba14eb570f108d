"""Rows beside a page: read and written packed, so that a page can be made again where it was made once.

A page may end in remarks, `data/remarks.md`, which are written by hand. A test holds their figures to the page.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plait

from .machine import machine

__all__ = ["EXPERIMENTS", "Kept", "add_row", "kept_in", "lines_of", "pack", "put_page"]

EXPERIMENTS = Path(__file__).resolve().parents[1]
_MADE = "made_on"


class Kept(NamedTuple):
    """The rows of a page."""

    lines: Sequence[str] = ()
    """Of JSON."""
    made_on: str = ""
    """The machine, and the versions."""


def kept_in(rows: Path, packed: Path) -> Kept:
    """Return the rows of a file, which were made here; or, if it is missing, those that were packed."""
    if rows.is_file():
        return Kept(lines_of(rows), f"{machine()} {_version()}")
    if not packed.is_file():
        return Kept()
    first, *lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    made_on = json.loads(first).get(_MADE)
    return Kept([first, *lines]) if made_on is None else Kept(lines, made_on)


def lines_of(rows: Path) -> list[str]:
    """Return the lines of a file that is being written: none if it is missing, and none that was cut off."""
    return rows.read_text(encoding="utf-8").split("\n")[:-1] if rows.is_file() else []


def add_row(kept: Path, row: Mapping[str, Any]) -> None:
    """Write a row behind those that are there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")


def pack(kept: Kept, to: Path) -> None:
    """Write rows packed; the same rows make the same bytes."""
    to.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in (json.dumps({_MADE: kept.made_on}), *kept.lines))
    to.write_bytes(gzip.compress(text.encode(), mtime=0))


def put_page(page: str, kept: Kept, out: Path, name: str, stem: str = "README") -> str:
    """Write a page of the experiment `name` into a folder, with what it was made on and its remarks; return it."""
    whole = page.rstrip("\n") + "\n"
    if kept.made_on:
        whole += f"\nMade of [its rows](data). {kept.made_on}\n"
    remarks = EXPERIMENTS / name / "data" / ("remarks.md" if stem == "README" else f"{stem}-remarks.md")
    if remarks.is_file():
        whole += "\n" + remarks.read_text(encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}.md").write_text(whole, encoding="utf-8")
    return whole


def _version() -> str:
    folder = EXPERIMENTS.parent
    git_ = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=folder, capture_output=True, text=True)  # noqa: PLW1510
    commit = f", commit {git_.stdout.strip()}" if git_.returncode == 0 else ""
    return f"plait {plait.__version__}{commit}."
