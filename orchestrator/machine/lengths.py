"""How many tokens steps of each class generated lately, and how many one more is likely to.

A class is a planner, a step's name without its number, a model and a limit of tokens: `sample-1` and `sample-7` of the
same planner are one class.

Likely is the median of a class. Lengths are skewed to the right: the median lies below the mean, so what many attempts
reserve together is less than what they come to, and a run that fits into its budget is not held up by it. A higher
quantile would start fewer attempts of a run that does not fit, and let more of them come to their end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median_low

from .records import Node

REMEMBERED = 64
"""Ends of a class that are remembered."""
FIRST_SHARE, FIRST_LEAST = 32, 16
"""Before any end of a class: one in so many of the tokens that an attempt may generate, and at least so many tokens."""


class Lengths:
    """Of all runs of a machine."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, deque[int]] = {}
        self._likely: dict[Hashable, int] = {}

    def add(self, node: Node, tokens: int) -> None:
        """Take note of an attempt that came to its end by itself."""
        key = _class(node)
        ends = self._ends.get(key)
        if ends is None:
            ends = self._ends[key] = deque(maxlen=REMEMBERED)
        ends.append(tokens)
        self._likely.pop(key, None)

    def likely(self, node: Node, most: int, known: int = 0) -> int:
        """Return how many tokens an attempt at a think step is likely to generate, of `most` at most, when `known` of
        its tokens are there already."""
        key = _class(node)
        ends = self._ends.get(key)
        if ends is None:
            return max(1, min(most, max(FIRST_LEAST, (most + known) // FIRST_SHARE) - known))
        likely = self._likely.get(key)
        if likely is None:
            likely = self._likely[key] = median_low(ends)
        return max(1, min(most, likely - known))


def _class(node: Node) -> Hashable:
    step, op = node.step, node.step.op
    assert op.kind == "think"
    return (
        node.run.request.planner.name,
        step.name.rstrip("0123456789"),
        op.model,
        op.sampling.max_tokens,
        op.after is None,
    )
