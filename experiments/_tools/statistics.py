"""Means with their uncertainty, and the estimators that the papers use. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.apps.common.intervals import paired, wilson

__all__ = [
    "Estimate", "Values", "difference", "mean", "pass_at", "ratio", "saving", "share", "share_text",
    "smallest_difference",
]  # fmt: skip

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
    """Return the mean with its 95 % percentile bootstrap interval (Efron, 1979), with problems resampled."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return Estimate(math.nan, math.nan, math.nan)
    return Estimate(*paired(array.tolist(), [0.0] * array.size, seed))


def share(hits: Values, seed: int = 0) -> Estimate:
    """Return the share of ones among zeros and ones with its interval: the bootstrap's, or the score interval (Wilson,
    1927) where all are the same, about which resampling says nothing. Raises `ValueError` for other values."""
    array = np.asarray(hits, dtype=np.float64)
    if not np.isin(array, (0.0, 1.0)).all():
        raise ValueError("a share is made of zeros and ones")
    found = mean(array, seed)
    if array.size == 0 or 0.0 < found.value < 1.0:
        return found
    return Estimate(found.value, *wilson(int(array.sum()), array.size))


def share_text(hits: int, of: int, digits: int = 0) -> str:
    """Return a share with its 95 % score interval (Wilson, 1927), as `79% (60–91)`; `digits` behind the point.

    >>> share_text(19, 24)
    '79% (60–91)'
    """
    low, high = wilson(hits, of)
    fewer = max(0, digits - 1)
    return f"{hits / max(1, of):.{digits}%} ({100 * low:.{fewer}f}–{100 * high:.{fewer}f})"


def difference(first: Values, second: Values, seed: int = 0) -> Estimate:
    """Return the mean of `first - second`, paired by problem, with its interval.

    Raises `ValueError` for series of different lengths.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} and {b.size} values cannot be paired")
    return Estimate(*paired(a.tolist(), b.tolist(), seed)) if a.size else mean(a)


def saving(used: Values, whole: Values, seed: int = 0) -> Estimate:
    """Return the share of `whole` that `used` leaves over in all, paired by problem, with its interval.

    It is a ratio of sums, 1 - sum(used) / sum(whole), and not a mean of ratios: what is saved on long problems counts
    for more. Raises `ValueError` for series of different lengths.
    """
    left = ratio(used, whole, seed)
    return Estimate(1.0 - left.value, 1.0 - left.high, 1.0 - left.low)


def ratio(top: Values, bottom: Values, seed: int = 0) -> Estimate:
    """Return sum(top) / sum(bottom), paired by problem, with its interval; nan without problems, or over nothing.
    Raises `ValueError` for series of different lengths."""
    a, b = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} and {b.size} values cannot be paired")
    if a.size == 0 or b.sum() == 0.0:
        return Estimate(math.nan, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    picks = [rng.integers(0, a.size, a.size) for _ in range(RESAMPLES)]
    drawn = np.array([a[pick].sum() / b[pick].sum() for pick in picks if b[pick].sum() != 0.0])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(a.sum() / b.sum()), float(low), float(high))


def smallest_difference(n: int, share: float) -> float:
    """Return the difference from a share that n paired questions show with a power of 80 % (McNemar's test, two-sided,
    5 %), where the two answers to a question are independent; smaller ones are mostly missed. 1.0 if none is shown.

    By the normal approximation (Connor, 1987): n d^2 = (1.96 sqrt(p) + .84 sqrt(p - d^2))^2, where p is the chance that
    the two answers differ. What goes wrong together makes p smaller, so pairs of like ways show a little more.

    >>> round(smallest_difference(100, 0.5), 2)
    0.2
    """
    for step in range(1, 1000):
        other = share + step / 1000
        if other > 1:
            break
        d, differ = step / 1000, share * (1 - other) + other * (1 - share)
        if n * d**2 >= (1.96 * math.sqrt(differ) + 0.84 * math.sqrt(max(0.0, differ - d**2))) ** 2:
            return d
    return 1.0


def pass_at(n: int, right: int, k: int) -> float:
    """Return the chance that at least one of k samples drawn from n is right, if `right` of the n are.

    The unbiased estimator of Chen et al. (arXiv 2107.03374): `1 - C(n - right, k) / C(n, k)`.
    """
    if not 0 < k <= n:
        raise ValueError(f"{k} samples cannot be drawn from {n}")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)
