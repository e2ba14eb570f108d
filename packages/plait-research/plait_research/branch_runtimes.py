"""When parallel branches end, predicted from recorded lengths.

As in "Predicting the runtime of parallel local search" (arXiv 2403.08790) branches are independent draws, so the k-th
of n to end is a sum of binomials. Lengths are tokens; seconds follow from a decoding step of n sequences
(`fixed + each * n`), which gets shorter as branches end.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

Step = Callable[[float], float]
"""Seconds of a decoding step, by the number of sequences."""


class Branches:
    """Recorded lengths of branches, in tokens. Raises `ValueError` without lengths, and for one below 1."""

    def __init__(self, lengths: Sequence[int]) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError("lengths of at least one token are needed")
        self.lengths: list[int] = sorted(lengths)

    def ended(self, n: int, k: int) -> list[float]:
        """Return P(the k-th of n has ended by then), for each length."""
        total = len(self.lengths)
        return [_probability_at_least(n, k, bisect_right(self.lengths, length) / total) for length in self.lengths]

    def times(self, n: int, step: Step | None) -> list[float]:
        """Return when a branch of each length ends, n having begun together; it is quicker as others have ended."""
        if step is None:
            return [float(length) for length in self.lengths]
        total, times, at, before = len(self.lengths), list[float](), 0.0, 0
        for i, length in enumerate(self.lengths):
            alive = max(1.0, n * (total - i) / total)
            at += (length - before) * step(alive)
            before = length
            times.append(at)
        return times


MAX_BRANCHES = 256
CONFIDENCE = 0.9


def max_branches_within(latency: float, lengths: Branches, step: Step) -> int:
    """Return the maximum number of branches that all end within `latency` seconds, with probability 0.9. 0 if a single
    one takes longer. `step` returns the seconds of a decoding step by number of sequences.

    >>> max_branches_within(3.0, Branches([100] * 50), lambda n: 0.01 + 0.001 * n)
    20
    """

    def fits(n: int) -> bool:
        chances = lengths.ended(n, n)
        times = lengths.times(n, step)
        reached = (time for time, chance in zip(times, chances, strict=True) if chance >= CONFIDENCE)
        return next(reached, math.inf) <= latency

    return bisect_left(range(1, MAX_BRANCHES + 1), True, key=lambda n: not fits(n))


def _probability_at_least(n: int, k: int, p: float) -> float:
    """Return P(at least k of n), each with probability p."""
    if p >= 1.0:
        return 1.0
    if p <= 0.0:
        return 0.0
    odds, term, total = math.log(p) - math.log1p(-p), n * math.log1p(-p), 0.0
    for i in range(n + 1):
        if i >= k:
            total += math.exp(term)
        if i < n:
            term += math.log((n - i) / (i + 1)) + odds
    return min(1.0, total)
