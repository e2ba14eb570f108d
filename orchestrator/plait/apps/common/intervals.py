"""95 % intervals of shares, of differences between paired shares, and of means."""

from __future__ import annotations

import math
from collections.abc import Sequence

RESAMPLES = 2000
_Z = 1.959963985  # of a 95 % interval


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the score interval of a share (Wilson, 1927); (0, 1) of nothing."""
    if n == 0:
        return 0.0, 1.0
    share, square = hits / n, _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z * math.sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def exact_share(hits: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper and Pearson, 1934)."""
    tail = (1 - level) / 2
    return 1 - _most(n - hits, n, tail), _most(hits, n, tail)


def _most(hits: int, n: int, tail: float) -> float:
    """Return the share at which at most `hits` of n have the probability `tail`, by bisection."""
    low, high = hits / n, 1.0
    if hits == n:
        return high
    for _ in range(50):
        share = (low + high) / 2
        logs = (math.log(share), math.log1p(-share))
        chance = math.fsum(math.exp(_log_choose(n, k) + k * logs[0] + (n - k) * logs[1]) for k in range(hits + 1))
        low, high = (share, high) if chance > tail else (low, share)
    return high


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def paired_difference(wins: int, losses: int, n: int) -> tuple[float, float, float]:
    """Return `(wins - losses) / n` with an exact interval, for n paired problems that are right or wrong.

    It joins two exact intervals: of the share of wins among the problems that differ, at 95 %, and of the share of
    problems that differ, at 90 %. So it leaves 0 out exactly where McNemar's exact test (1947) is below 0.05. Where no
    problem differs, it is the rule of three: at most 1 - 0.05^(1/n), about 3/n, either way.

    >>> [round(share, 3) for share in paired_difference(0, 0, 50)]
    [0.0, -0.058, 0.058]
    """
    differ = wins + losses
    if differ == 0:
        most = 1.0 - 0.05 ** (1 / n)
        return 0.0, -most, most
    few, many = exact_share(differ, n, 0.9)
    low, high = (2 * share - 1 for share in exact_share(wins, differ))
    return (wins - losses) / n, low * (many if low < 0 else few), high * (many if high > 0 else few)


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return a mean with its percentile bootstrap interval (Efron, 1979). Equal values give a width of 0, which
    resampling cannot correct."""
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = [array[rng.integers(0, array.size, array.size)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(array.mean()), float(low), float(high)
