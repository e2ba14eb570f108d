"""Intervals of shares and of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

RESAMPLES = 2000
_Z = 1.959963985  # of a 95 % interval


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share (Wilson, 1927); (0, 1) of nothing."""
    if n == 0:
        return 0.0, 1.0
    share, square = hits / n, _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z * math.sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def paired(values: Sequence[float], base: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean of `values - base` with its 95 % percentile bootstrap interval (Efron, 1979), resampling
    problems."""
    import numpy as np

    differences = np.asarray(values) - np.asarray(base)
    rng = np.random.default_rng(seed)
    size = differences.size
    drawn = [differences[rng.integers(0, size, size)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)
