"""When a vote of unfinished lines is safe: the formulas of MARS. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    def __init__(self, lines: Sequence[LineLooks], records: Sequence[Sequence[float]] = ()) -> None:
        """Fit finished lines, with a penalty of 0.01 on the squared weights of the scaled features. Lines that all
        switched, or none did, teach a rate alone: (s + 1) / (m + 2) for s of m looks. `records` are looks of earlier
        runs, as `looks_of` makes them."""
        rows = [([*row[:-1]], row[-1]) for row in (*records, *to_features(lines))]
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


def to_features(lines: Sequence[LineLooks]) -> list[list[float]]:
    """Return the looks of finished lines as numbers: the five features, and 1 where the line ended in another answer,
    else 0."""
    return [[*seen.features(at), float(look.key != seen.final)] for seen in lines for at, look in enumerate(seen.looks)]


def find_leader(votes: Counter[str]) -> str | None:
    """Return the answer with the most votes, the first to be counted of equals."""
    return max(votes, key=lambda key: votes[key]) if votes else None


def is_safe(votes: Counter[str], active: Sequence[tuple[str | None, float]], gamma: float = 1.0) -> bool:
    """Whether the first answer L stays first: for each other answer k, and for one that nobody has given yet,
    V_L - V_k > sum of q c over the `active` lines that have an answer, each with its chance q of switching.

    The cost c of a line that switches is 2 gamma for one that says L (L loses a vote, and at worst k gains it), -1 for
    one that says k, gamma for any other.
    """
    first = find_leader(votes)
    if first is None:
        return False
    likely = [(key, q) for key, q in active if key is not None]
    return all(
        votes[first] - votes[other]
        > math.fsum(q * (-1.0 if key == other else gamma * (2.0 if key == first else 1.0)) for key, q in likely)
        for other in [*(key for key in votes if key != first), ""]
    )


def calibrate(lines: Sequence[LineLooks]) -> float:
    """Return gamma for finished lines: the least of 1, 0.9, … 0 down to which a stop by `safe` among these lines alone
    gives the answer that it gives at 1, plus 1 / sqrt of the lines with an answer at the look where it stopped at 1; at
    least 0.5, at most 1. The chance of switching is the truth here: whether the line did. Fewer than four lines that
    ended in an answer teach nothing."""
    ended = [seen for seen in lines if seen.final is not None]
    looks = max((len(seen.looks) for seen in ended), default=0)
    if len(ended) < 4 or not looks:
        return 1.0
    reference, band, open_then = "", 1.0, 1
    for tenth in range(10, -1, -1):
        stopped_at, answered = _replay_stop(ended, looks, tenth / 10)
        if tenth == 10:
            reference, open_then = stopped_at, answered
        if stopped_at != reference:
            break
        band = tenth / 10
    return round(max(LEAST, min(1.0, band + 1 / math.sqrt(max(1, open_then)))), 2)


def _replay_stop(lines: Sequence[LineLooks], looks: int, gamma: float) -> tuple[str, int]:
    """Return the first answer at the first look at which `safe` holds, or else of the whole vote, and how many lines
    had an answer at that look, or the last. Of equals the answer is first that ended a line first."""
    finals = [seen.final for seen in lines]
    keys = (*finals, *(look.key for seen in lines for look in seen.looks))
    order = dict.fromkeys([key for key in keys if key is not None], 0)
    answered = 0
    for at in range(looks):
        now = [(seen.looks[at].key if at < len(seen.looks) else seen.final, seen.final) for seen in lines]
        votes = Counter(order)
        votes.update(key for key, _ in now if key is not None)
        answered = votes.total()
        if answered and is_safe(votes, [(key, float(key != final)) for key, final in now], gamma):
            return find_leader(votes) or "", answered
    votes = Counter(order)
    votes.update(key for key in finals if key is not None)
    return find_leader(votes) or "", answered


class SteadyVote:
    """Decides when a vote of unfinished samples is stable, and which samples have left it: the controller of
    Parallel-Probe (Zheng et al., 2026), with the settings of its authors.

    After `warmup` probes the vote may end once the same answer was first in `stable` probes in a row. A sample that
    gives another answer in `patience` probes in a row is cancelled. Of answers with equal votes, the one that a sample
    gave first is first.
    """

    def __init__(self, lines: int, stable: int = 3, warmup: int = 4, patience: int = 2) -> None:
        self.left = [False] * lines
        """Which lines are given up."""
        self._stable, self._warmup, self._patience = stable, warmup, patience
        self._off = [0] * lines
        self._first: str | None = None
        self._looks = self._same = 0

    def ends(self, keys: Sequence[str | None]) -> bool:
        """Take what each line answers at a look (`None`: nothing); return whether the vote may end."""
        counted = [key if not left else None for key, left in zip(keys, self.left, strict=True)]
        first = find_leader(Counter(key for key in counted if key is not None))
        self._same = self._same + 1 if first is not None and first == self._first else 1
        self._first, at = first, self._looks
        self._looks += 1
        if at < self._warmup:
            return False
        for place, key in enumerate(counted):
            self._off[place] = 0 if key is None or key == first else self._off[place] + 1
            self.left[place] = self.left[place] or self._off[place] >= self._patience
        return first is not None and self._same >= self._stable
