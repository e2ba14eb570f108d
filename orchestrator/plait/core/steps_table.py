"""The steps of a run as a notebook shows them: a tree with bars of time."""

from __future__ import annotations

from collections.abc import Sequence

from .notebook_html import bar, marked, table
from .record import StepRecord

__all__ = ["steps_table"]

_MOST = 200
_MARKS = {"done": "✓", "failed": "✗", "cancelled": "−", "running": "●", "expanding": "●", "expanded": "◆"}
_COLOURS = {"done": "#2e7d32", "failed": "#c62828", "cancelled": "#b26a00"}


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
        text = record.reason or (record.value if isinstance(record.value, str) else "")
        rows.append((
            f"<span style='padding-left:{1.2 * depth[record.step]:.1f}em'>{sign} {marked(record.name)}</span>",
            state, str(record.tokens or ""), "" if ran is None else bar(ran, last, whole), marked(text),
        ))  # fmt: skip
    more = len(records) - len(rows)
    return table(("step", "state", "tokens", "when", "why, or what it said"), rows) + (f"and {more} more" * bool(more))
