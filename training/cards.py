"""Whether the model cards say what the models do: their figures measured again on held-out questions, and compared.

A share agrees where the two 95 % intervals meet; an AUROC where it is within three standard errors. The questions are
others than the card's where the seed is another.
"""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from typing import NamedTuple

import torch

from . import evaluate, export
from .evaluate import wilson
from .trades import TRADES

__all__ = ["Compared", "compare", "figures", "measured", "shipped"]

_INTERVAL = re.compile(r"\**([\d.]+) % \(([\d.]+)–([\d.]+)\)\**")
_SHARE = re.compile(r"([\d.]+) %")
_AUROC = re.compile(r"[01]\.\d{3}")
ERRORS = 3.0
"""Standard errors within which two AUROC agree."""


class Figure(NamedTuple):
    """A value of a table in [0, 1] and its interval."""

    value: float
    low: float
    high: float


class Compared(NamedTuple):
    """One figure of a card beside the same measured again."""

    name: str
    card: Figure
    now: Figure

    @property
    def agrees(self) -> bool:
        """Whether the intervals meet."""
        return self.card.low <= self.now.high and self.now.low <= self.card.high

    def __str__(self) -> str:
        def said(figure: Figure) -> str:
            return f"{figure.value:.3f} ({figure.low:.3f}–{figure.high:.3f})"

        return f"{'agrees' if self.agrees else 'DIFFERS'}: {self.name}: card {said(self.card)}, now {said(self.now)}"


def figures(text: str) -> dict[str, Figure]:
    """Return the figures of all Markdown tables in a text, by row and column. A share without an interval gets one of
    its row's `n`; columns by number of calls, which have few questions each, are left out."""
    found: dict[str, Figure] = {}
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif not set(line) <= set("|- "):
            row = dict(zip(head, cells, strict=False))
            count = next((int(row[key].replace(",", "")) for key in ("n", "words") if row.get(key, "").strip()), 0)
            for column in head[1:]:
                figure = _figure(row.get(column, ""), column, count, row)
                if figure is not None:
                    name = column.partition(" (")[0]
                    found[f"{cells[0]}, {name}"] = figure
    return found


def _figure(cell: str, column: str, count: int, row: dict[str, str]) -> Figure | None:
    if (said := _INTERVAL.fullmatch(cell)) is not None:
        return Figure(*(float(each) / 100 for each in said.groups()))
    if (share := _SHARE.fullmatch(cell)) is not None and count and "random" not in column:
        value = float(share[1]) / 100
        return Figure(value, *wilson(round(value * count), count))
    if _AUROC.fullmatch(cell) is not None and "AUROC" in column and count:
        value = float(cell)
        part = _SHARE.fullmatch(row.get("solvable", ""))
        fewer = count * (min(float(part[1]), 100 - float(part[1])) / 100 if part else 0.1)
        error = ERRORS / 2 * math.sqrt(max(value * (1 - value), 0.01) / max(1.0, fewer))
        return Figure(value, value - error, value + error)
    return None


def shipped() -> list[tuple[str, str]]:
    """Return the trades and sizes of the bundled models whose cards have a table."""
    return [
        (trade, size)
        for trade, each in TRADES.items()
        for size, folder in each.folders.items()
        if (folder / "model.safetensors").is_file() and evaluate.TABLE[0] in _card(folder)
    ]


def _card(folder: Path) -> str:
    path = folder / "README.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def measured(trade: str, size: str, count: int, seed: int) -> str:
    """Return a model's tables, measured now, as Markdown. Of `countdown` only search and threads of eight, on the
    questions of its card: the others take an hour."""
    each = TRADES[trade]
    model = export.load(each.folders[size], torch.device("cpu"))
    if each.report:
        made: str = importlib.import_module(each.report).report(model, count, seed)
        return made
    rows = evaluate.evaluate(model, count, quick=True)
    return "\n".join([evaluate.HEAD, *map(evaluate.line, rows)])


def compare(trade: str, size: str, count: int, seed: int) -> list[Compared]:
    """Return the figures of a card that were measured now too."""
    text = _card(TRADES[trade].folders[size]).partition(evaluate.TABLE[0])[2].partition(evaluate.TABLE[1])[0]
    card, now = figures(text), figures(measured(trade, size, count, seed))
    return [Compared(name, card[name], now[name]) for name in card if name in now]
