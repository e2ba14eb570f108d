"""Find stop texts in a text, and beginnings of stop texts at its end."""

from __future__ import annotations

from collections.abc import Sequence


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Return where the stop text begins and ends that is complete first in a text; of two that end together, the
    longer."""
    ends = [(begin + len(stop), begin) for stop in stops if stop and (begin := text.find(stop)) >= 0]
    if not ends:
        return None
    end, begin = min(ends)
    return begin, end
