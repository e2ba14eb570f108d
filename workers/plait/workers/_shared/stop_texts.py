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


def opening(text: str, stops: Sequence[str]) -> str:
    """Return the longest end of a text with which a stop text may begin."""
    longest = max(map(len, stops), default=0) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return text[-size:]
    return ""
