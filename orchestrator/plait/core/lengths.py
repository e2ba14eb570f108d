"""The estimate of an answer's tokens, shared by policies, server hints and prices.

The estimate uses the answers of ended steps with the same template: first siblings in the same run, then steps of
earlier runs, then all calls to the same model with the same limit. With few samples, the limit supplies the rest of the
estimate.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

ENOUGH = 8
"""Lengths in a full sample. In a smaller sample each length has weight 1/8, and the next wider sample has the rest."""
LATEST = 64
"""Number of lengths kept per sample, the newest ones."""
SHARE = 0.3
"""Mean share of the token limit that an answer uses, before any similar answer has ended. Lengths are then assumed to
be exponentially distributed."""
QUANTILE = 0.7
"""Quantile of the lengths used as the expectation. Lengths are skewed, so the quantile is near or above their mean."""

_PRIOR = tuple(-math.log(1.0 - (i + 0.5) / ENOUGH) for i in range(ENOUGH))
"""Quantiles of the exponential distribution with mean 1."""


def quantile(values: Iterable[float], share: float) -> float:
    """Return the quantile of the values by nearest rank. Raises `ValueError` for no values.

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
    first. `known`: tokens generated so far, so only longer lengths count. An answer longer than all samples is expected
    to use the usual share of its remaining limit.

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
            # A narrow sample has weight by its size; the next wider sample gets the remaining weight.
            weight = rest * min(1.0, len(latest) / ENOUGH)
            longer += [(length, weight / len(latest)) for length in latest if length > known]
            rest -= weight
            if rest <= 0.0:
                break
    if rest > 0.0:
        prior = (min(limit, SHARE * limit * multiple) for multiple in _PRIOR)
        longer += [(length, rest / ENOUGH) for length in prior if length > known]
    # The answer is longer than all samples: only the limit gives information.
    if not longer:
        return max(1.0, SHARE * (limit - known))
    longer.sort()
    so_far = list(accumulate(weight for _, weight in longer))
    length, _ = longer[bisect_left(so_far, share * so_far[-1] - 1e-9)]
    return max(1.0, float(min(length, limit) - known))
