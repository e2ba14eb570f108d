"""What notebooks show: steps as an indented table with bars of time, plans by needs, shares with intervals.

HTML without scripts or styles of its own page, so that it looks alike in every notebook and survives a saved file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .record import StepRecord

__all__ = ["bar", "marked", "steps_table", "table"]

_MOST = 200
_TEXT = 300
_MARKS = {"done": "✓", "failed": "✗", "cancelled": "−", "running": "●", "expanding": "●", "expanded": "◆"}
_COLOURS = {"done": "#2e7d32", "failed": "#c62828", "cancelled": "#b26a00"}


def marked(text: str) -> str:
    """Return a text as HTML shows it, cut where it is long."""
    return escape(text if len(text) <= _TEXT else f"{text[:_TEXT]}…")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    cells = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{cells}</table>"


def bar(start: float, end: float, whole: float, colour: str = "#1565c0") -> str:
    """Return a bar from `start` to `end` of a line that is `whole` long, in any one unit."""
    left, width = 100 * start / whole, max(1.0, 100 * (end - start) / whole)
    return (
        "<div style='width:160px;background:#8882'>"
        f"<div style='height:8px;margin-left:{min(left, 99):.1f}%;width:{min(width, 100 - min(left, 99)):.1f}%;"
        f"background:{colour}'></div></div>"
    )


def steps_table(records: Sequence[StepRecord]) -> str:
    """Return the steps of a run as a tree by who expanded into whom, each with when it ran and why it ended."""
    whole = max([1e-9, *(moved[0] for record in records for moved in record.moves)])
    depth: dict[str, int] = {}
    rows: list[tuple[str, ...]] = []
    for record in records[:_MOST]:
        depth[record.step] = 0 if record.owner is None else depth.get(record.owner, 0) + 1
        state, ran = record.state, record.started_at
        last = record.moves[-1][0] if record.moves and record.ended else whole
        sign = f"<span style='color:{_COLOURS.get(state, '#555')}'>{_MARKS.get(state, '·')}</span>"
        said = record.reason or (record.value if isinstance(record.value, str) else "")
        rows.append((
            f"<span style='padding-left:{1.2 * depth[record.step]:.1f}em'>{sign} {marked(record.name)}</span>",
            state, str(record.tokens or ""), "" if ran is None else bar(ran, last, whole), marked(said),
        ))  # fmt: skip
    more = len(records) - len(rows)
    return table(("step", "state", "tokens", "when", "why, or what it said"), rows) + (f"and {more} more" * bool(more))
