"""HTML parts for notebooks: tables, bars and shortened texts.

The HTML has no scripts or style sheets, so it looks the same in every notebook and in a saved file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_TEXT = 300


def escape_text(text: str) -> str:
    """Return a text escaped for HTML; a long text is shortened."""
    return escape(text if len(text) <= _TEXT else f"{text[:_TEXT]}…")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    lines = ("".join(f"<td style='text-align:left'>{cell}</td>" for cell in row) for row in rows)
    cells = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{cells}</table>"


def bar(start: float, end: float, whole: float, colour: str = "#1565c0") -> str:
    """Return a bar from `start` to `end` on a line of length `whole`, all in the same unit."""
    left, width = 100 * start / whole, max(1.0, 100 * (end - start) / whole)
    return (
        "<div style='width:160px;background:#8882'>"
        f"<div style='height:8px;margin-left:{min(left, 99):.1f}%;width:{min(width, 100 - min(left, 99)):.1f}%;"
        f"background:{colour}'></div></div>"
    )
