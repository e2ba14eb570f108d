"""Which planners are still in question for `route` with `criterion=record`, by what came of their runs so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from plait.core.routing import Tier

__all__ = ["contenders"]

_LEAST = 6
"""Runs of a planner below which it is not given up: the first few say little."""
_LOOKS = 10
"""Looks that share the chance to be wrong. There is one after each run, but they say nearly the same."""


def contenders(tiers: Sequence[Tier], sure: float) -> list[Tier]:
    """Return the planners that may still be the best, at least one. One is given up when it is worse than the one with
    the highest mean with a chance of `sure`; means are taken to be normal, with the variance of Beta(1 + wins,
    1 + losses), and the chance to be wrong is shared among the planners and the looks (Bonferroni)."""
    known = [_mean_and_variance(tier) for tier in tiers]
    best = max(range(len(tiers)), key=lambda place: known[place][0])
    z = NormalDist().inv_cdf(1 - (1 - min(sure, 1 - 1e-9)) / (_LOOKS * max(1, len(tiers) - 1)))
    return [
        tier
        for place, tier in enumerate(tiers)
        if place == best
        or min(tier.wins + tier.losses, tiers[best].wins + tiers[best].losses) < _LEAST
        or known[best][0] - known[place][0] <= z * math.sqrt(known[best][1] + known[place][1])
    ]


def _mean_and_variance(tier: Tier) -> tuple[float, float]:
    a, b = 1 + tier.wins, 1 + tier.losses
    return a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
