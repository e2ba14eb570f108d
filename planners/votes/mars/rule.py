"""When a vote of unfinished lines is safe: the formulas of MARS. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LineLooks", "Look", "Switching", "calibrated", "leader", "safe"]

Floats = NDArray[np.float64]
LEAST = 0.5
"""Least share of the worst case that calibration may come to."""


class Look(NamedTuple):
    """What an unfinished line said when it was asked for its answer."""

    key: str | None
    """Of the answer; `None`: it had none."""
    sure: float
    """Mean log-probability (nats) of what it said."""


class LineLooks(NamedTuple):
    """A line: its looks, and the answer that it ended in."""

    looks: Sequence[Look]
    final: str | None = None

    def features(self, at: int) -> list[float]:
        """Return the five features of a look: position, sureness, changes so far, looks since the last one, trend."""
        keys = [look.key for look in self.looks[: at + 1]]
        changes = [i for i in range(1, at + 1) if keys[i] != keys[i - 1]]
        trend = self.looks[at].sure - self.looks[at - 1].sure if at else 0.0
        return [float(at), self.looks[at].sure, float(len(changes)), float(at + 1 - max(changes, default=0)), trend]


class Switching:
    """P(a line ends in another answer than it gives now), a logistic regression on the features of a look."""

    def __init__(self, lines: Sequence[LineLooks]) -> None:
        """Fit finished lines, with a penalty of 0.01 on the squared weights of the scaled features. Lines that all
        switched, or none did, teach a rate alone: (s + 1) / (m + 2) for s of m looks."""
        rows = [
            (seen.features(at), float(look.key != seen.final)) for seen in lines for at, look in enumerate(seen.looks)
        ]
        right: Floats = np.array([label for _, label in rows], dtype=np.float64)
        self.rate = (float(right.sum()) + 1) / (len(rows) + 2)
        self._weights: Floats | None = None
        if not 0 < right.sum() < len(rows):
            return
        x: Floats = np.array([features for features, _ in rows], dtype=np.float64)
        self._mean, self._scale = x.mean(0), np.maximum(x.std(0), 1e-10)
        x = np.hstack([np.ones((len(x), 1)), (x - self._mean) / self._scale])
        penalty = np.diag([0.0] + [0.02] * (x.shape[1] - 1))
        weights: Floats = np.zeros(x.shape[1])
        for _ in range(50):  # Newton's method
            p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
            slope = x.T @ (right - p) - penalty @ weights
            curve = (x * (p * (1 - p))[:, None]).T @ x + penalty + 1e-9 * np.eye(x.shape[1])
            step = np.linalg.solve(curve, slope).astype(np.float64)
            weights = weights + step * min(1.0, 5.0 / max(1e-12, float(np.abs(step).max())))
            if float(np.abs(step).max()) < 1e-8:
                break
        self._weights = weights

    def of(self, seen: LineLooks) -> float:
        """Return the chance that a line switches after its last look; the rate of all for one that had no look."""
        if self._weights is None or not seen.looks:
            return self.rate
        x = (np.array(seen.features(len(seen.looks) - 1)) - self._mean) / self._scale
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, float(self._weights[0] + x @ self._weights[1:])))))


def leader(votes: Counter[str]) -> str | None:
    """Return the answer with the most votes, the first to be counted of equals."""
    return max(votes, key=lambda key: votes[key]) if votes else None


def safe(votes: Counter[str], active: Sequence[tuple[str | None, float]], gamma: float = 1.0) -> bool:
    """Whether the first answer L stays first: for each other answer k, and for one that nobody has given yet,
    V_L - V_k > sum of q c over the `active` lines, each with its answer and its chance q of switching.

    The cost c of a line that switches is 2 gamma for one that says L (L loses a vote, and at worst k gains it), -1 for
    one that says k, gamma for any other.
    """
    first = leader(votes)
    if first is None:
        return False
    return all(
        votes[first] - votes[other]
        > math.fsum(q * (-1.0 if key == other else gamma * (2.0 if key == first else 1.0)) for key, q in active)
        for other in [*(key for key in votes if key != first), ""]
    )


def calibrated(lines: Sequence[LineLooks], switching: Switching) -> float:
    """Return gamma for finished lines: the least of 1, 0.9, … 0.5 down to which a stop by `safe` among these lines
    alone gives the answer of their full vote, plus 1 / sqrt of how many were active then at gamma 1; 1 at most."""
    reference = leader(Counter(seen.final for seen in lines if seen.final is not None))
    band, open_then = 1.0, 1
    for gamma in (1.0, 0.9, 0.8, 0.7, 0.6, LEAST):
        said, active = _stopped(lines, switching, gamma)
        if said != reference:
            break
        band = gamma
        open_then = max(1, active) if gamma == 1.0 else open_then
    return min(1.0, band + 1 / math.sqrt(open_then))


def _stopped(lines: Sequence[LineLooks], switching: Switching, gamma: float) -> tuple[str | None, int]:
    """Return the first answer, and the lines that were active, at the first look at which `safe` holds, or the last."""
    votes: Counter[str] = Counter()
    active: list[tuple[str | None, float]] = []
    for at in range(max((len(seen.looks) for seen in lines), default=0) + 1):
        begun = [LineLooks(seen.looks[: at + 1]) for seen in lines if at < len(seen.looks)]
        active = [(seen.looks[-1].key, switching.of(seen)) for seen in begun]
        ended = [seen.final for seen in lines if at >= len(seen.looks)]
        votes = Counter(key for key in [*(key for key, _ in active), *ended] if key is not None)
        if safe(votes, active, gamma):
            break
    return leader(votes), len(active)
