"""How many tokens an answer will have: the one estimate of policies, hints to servers and prices.

It is read off the answers to steps of the same template that have ended: siblings in the same run first, then steps of
earlier runs, then whatever was asked of the same model with the same limit. While there are few of them, the limit
itself says the rest.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

ENOUGH = 8
"""Lengths in a full sample. In a smaller one each counts an eighth, and the next wider sample counts for the rest."""
LATEST = 64
"""Number of lengths kept per sample, the newest ones."""
SHARE = 0.3
"""Of the tokens that it may generate: what an answer has in the mean before any like it has ended. Lengths are then
taken to be exponentially distributed."""
QUANTILE = 0.7
"""Of the lengths: what is expected. Lengths are skewed, so this lies near their mean, and rather above it."""

_PRIOR = tuple(-math.log(1.0 - (i + 0.5) / ENOUGH) for i in range(ENOUGH))
"""Quantiles of the exponential distribution with mean 1."""


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least this share of them do not exceed (the nearest rank). Raises `ValueError`
    for no values.

    >>> quantile([40, 10, 30, 20], 0.5), quantile([40, 10, 30, 20], 0.51)
    (20, 30)
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no value has a quantile")
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def expected_tokens(
    limit: int, samples: Sequence[Sequence[int]] = (), *, known: int = 0, share: float = QUANTILE
) -> float:
    """Return the expected number of tokens that a step will still generate, at least 1; `limit` is its token limit.

    `samples` are the lengths of steps like it that ended, from the narrowest sample to the widest, the oldest length
    first; `known`: tokens that it has already, so only longer ones count. Of one longer than all of them it is expected
    that it continues for the usual share of what its limit leaves.

    >>> expected_tokens(1000, [[100] * 8])
    100.0
    >>> expected_tokens(1000, [[100] * 8], known=60), expected_tokens(1000, [[100] * 8], known=200)
    (40.0, 240.0)
    """
    longer: list[tuple[float, float]] = []
    rest = 1.0
    for sample in samples:
        if sample:
            latest = sample[-LATEST:]
            # A narrow sample counts as far as it is large; what it leaves goes to the next wider one.
            weight = rest * min(1.0, len(latest) / ENOUGH)
            longer += [(length, weight / len(latest)) for length in latest if length > known]
            rest -= weight
            if rest <= 0.0:
                break
    if rest > 0.0:
        prior = (min(limit, SHARE * limit * multiple) for multiple in _PRIOR)
        longer += [(length, rest / ENOUGH) for length in prior if length > known]
    # It is longer than all that were seen: only its limit says anything yet.
    if not longer:
        return max(1.0, SHARE * (limit - known))
    longer.sort()
    so_far = list(accumulate(weight for _, weight in longer))
    length, _ = longer[bisect_left(so_far, share * so_far[-1] - 1e-9)]
    return max(1.0, float(min(length, limit) - known))
