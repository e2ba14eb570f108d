"""Names of the queues that ready steps wait in."""

from __future__ import annotations

from ..core.ops import Op, Think


def lane_of(op: Op) -> str:
    """Return the name of the queue that a step waits in: its kind, and its model if it names one. Workers say which
    lanes they serve."""
    if isinstance(op, Think):
        return "think" if op.model is None else f"think {op.model}"
    return op.kind
