"""Means with their uncertainty, and the estimators that the papers use. Pure; needs numpy.

Every page takes its intervals from here. The coverage of each is measured in `tests/experiments/test_statistics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.apps.common.intervals import bootstrap, paired_difference, wilson

__all__ = [
    "Estimate", "Values", "auroc", "difference", "discordant", "holm", "mcnemar", "mean", "p_value", "pass_at", "ratio",
    "saving", "share", "share_text", "smallest_difference", "verdict", "wins_and_losses",
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
    return Estimate(*bootstrap(array.tolist(), seed))


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
    """Return the mean of `first - second`, paired by problem, with its interval: exact for zeros and ones
    (`discordant`), by the bootstrap for other values.

    Where no problem differs, a bootstrap has the width 0. For shares between 0 and 1 the rule of three replaces it.
    Raises `ValueError` for series of different lengths.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} and {b.size} values cannot be paired")
    if not a.size:
        return mean(a)
    both = np.concatenate([a, b])
    if np.isin(both, (0.0, 1.0)).all():
        return discordant(*wins_and_losses(a, b), a.size)
    if (a == b).all() and both.min() >= 0.0 and both.max() <= 1.0:
        return discordant(0, 0, a.size)
    return Estimate(*bootstrap((a - b).tolist(), seed))


def wins_and_losses(first: Values, second: Values) -> tuple[int, int]:
    """Return the number of problems on which `first` is higher, and on which it is lower."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    return int((a > b).sum()), int((a < b).sum())


def discordant(wins: int, losses: int, n: int) -> Estimate:
    """Return `(wins - losses) / n` with an exact interval, for n paired problems that are right or wrong.

    It leaves 0 out exactly where `mcnemar` is below 0.05 (`plait.apps.common.intervals`).

    >>> discordant(0, 0, 50).points()
    '+0.0 points (-5.8 to +5.8)'
    """
    return Estimate(*paired_difference(wins, losses, n))


def mcnemar(wins: int, losses: int) -> float:
    """Return the two-sided p-value of McNemar's exact test (1947); 1.0 if no problem differs.

    >>> round(mcnemar(24, 6), 4)
    0.0014
    """
    differ = wins + losses
    return min(1.0, 2 * sum(math.comb(differ, k) for k in range(min(wins, losses) + 1)) / 2**differ)


def p_value(found: Estimate, null: float = 0.0, logarithmic: bool = False) -> float:
    """Return the two-sided p-value of a null value, from an interval alone (Altman and Bland, 2011: the normal
    approximation); `logarithmic` for ratios.

    >>> round(p_value(Estimate(0.03, 0.007, 0.054)), 3)
    0.012
    """
    ends = [math.log(each) for each in (*found, null)] if logarithmic else [*found, null]
    value, low, high, at = ends
    half = value - low if value > at else high - value  # the side of the null value: intervals may be uneven
    if value == at or half <= 0:
        return float(value == at)
    return math.erfc(abs(value - at) / (half / 1.959963985) / math.sqrt(2))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for several comparisons (Holm, 1979), in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, most = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        most = max(most, min(1.0, values[place] * (len(values) - rank)))
        corrected[place] = most
    return corrected


def verdict(found: Estimate, smallest: float) -> str:
    """Return `yes` if an interval lies above the smallest effect that counts, `no` if it lies below, `not shown` where
    it holds it."""
    return "yes" if found.low > smallest else "no" if found.high < smallest else "not shown"


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


def auroc(scores: Sequence[float], same: Sequence[bool]) -> float:
    """Return the area under a judge's ROC curve: the probability that a pair with equal answers scores higher than a
    pair with different answers. Equal scores count half (Mann and Whitney, 1947).

    `scores[i]` is the judge's score of the i-th pair of traces; `same[i]` is true if both gave the same answer. Time is
    O(n log n). Raises `ValueError` if all pairs are of one kind, since the area is then undefined.
    """
    positive = sum(same)
    negative = len(same) - positive
    if len(scores) != len(same) or not positive or not negative:
        raise ValueError(f"{positive} pairs with the same answer and {negative} without: both kinds are needed")
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    ranks = 0.0
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        middle = (start + 1 + end) / 2.0  # mean of the ranks start+1..end
        ranks += middle * sum(same[i] for i in order[start:end])
        start = end
    return (ranks - positive * (positive + 1) / 2.0) / (positive * negative)
