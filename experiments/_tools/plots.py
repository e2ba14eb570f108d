"""How a study's plots look. Knows no study; needs matplotlib, which is imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .statistics import Estimate

__all__ = ["Series", "lines", "save"]

# Okabe and Ito's colours, which people with any common colour blindness can tell apart; each with a marker of its own.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Series(NamedTuple):
    """Points with intervals: x, y and what to write beside the point."""

    label: str
    points: Sequence[tuple[float, Estimate, str]]
    joined: bool = True
    """Whether a line goes through them."""


def lines(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    title: str,
    *,
    percent: bool = True,
    log_x: bool = False,
    joined: bool = True,
) -> Any:
    """Return a figure of lines with interval bars; shares are drawn as percents."""
    from matplotlib.figure import Figure

    many = len(series) > 4
    figure = Figure(figsize=(9.0 if many else 7.0, 4.3), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    factor = 100.0 if percent else 1.0
    for i, each in enumerate(series):
        if not each.points:
            continue
        points = sorted(each.points, key=lambda point: point[0])
        x = [point[0] for point in points]
        y = [factor * point[1].value for point in points]
        low = [factor * max(0.0, point[1].value - point[1].low) for point in points]
        high = [factor * max(0.0, point[1].high - point[1].value) for point in points]
        axes.errorbar(
            x,
            y,
            yerr=(low, high),
            label=each.label,
            color=_COLOURS[i % len(_COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)] if len(x) <= 20 else None,
            markersize=5,
            linestyle="-" if joined and each.joined and len(x) > 1 else "none",
            linewidth=1.3,
            elinewidth=0.8,
            capsize=2,
        )
        for at, value, point in zip(x, y, points, strict=True):
            if point[2]:
                axes.annotate(point[2], (at, value), textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    if log_x:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    if many:
        figure.legend(fontsize=7, loc="outside right center")
    elif len(series) > 1:
        axes.legend(fontsize=7)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a PNG without the time of day in it, so that the same numbers give the same file."""
    figure.savefig(path, metadata={"Software": None})
