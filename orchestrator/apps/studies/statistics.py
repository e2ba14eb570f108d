"""Means with their uncertainty, and the estimators that the papers use. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "Values", "difference", "mean", "pass_at"]

Values = Sequence[float] | NDArray[np.float64]
RESAMPLES = 2000
LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean over problems and its bootstrap interval."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """As `61.8 % (58.7–64.8)`."""
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f}–{100 * self.high:.1f})"

    def points(self) -> str:
        """A difference of shares, as `+37.7 points (34.6–40.8)`."""
        return f"{100 * self.value:+.1f} points ({100 * self.low:+.1f} to {100 * self.high:+.1f})"

    def number(self) -> str:
        """As `318 (312–324)`."""
        digits = 0 if self.value >= 20 else 2
        return f"{self.value:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def mean(values: Values, seed: int = 0) -> Estimate:
    """Return the mean with its 95 % percentile bootstrap interval (Efron, 1979), problems being drawn anew."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return Estimate(math.nan, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    drawn = np.array([array[rng.integers(0, array.size, array.size)].mean() for _ in range(RESAMPLES)])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(array.mean()), float(low), float(high))


def difference(first: Values, second: Values, seed: int = 0) -> Estimate:
    """Return the mean of `first - second`, paired by problem, with its interval.

    Raises `ValueError` for series of different lengths.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} and {b.size} values cannot be paired")
    return mean(a - b, seed)


def pass_at(n: int, right: int, k: int) -> float:
    """Return the chance that at least one of k samples drawn from n, of which `right` are right, is right.

    The unbiased estimator of Chen et al. (arXiv 2107.03374): `1 - C(n - right, k) / C(n, k)`.
    """
    if not 0 < k <= n:
        raise ValueError(f"{k} samples cannot be drawn from {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)
