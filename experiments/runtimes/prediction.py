"""How long n branches take: until the first ends, until k have, until one succeeds.

As in "Predicting the runtime of parallel local search" (arXiv 2403.08790) branches are independent draws, so the k-th
of n to end is a sum of binomials; the first success is a draw of a distribution that may never come. Lengths are
tokens; seconds follow from a decoding step of n sequences (`fixed + each * n`), which gets shorter as branches end.
Intervals come from drawing the recorded lengths again (bootstrap): they state how sure the mean is, not how far a
single run lies.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Branches", "Prediction", "Problems", "Step"]

Step = Callable[[float], float]
"""Seconds of a decoding step, by the number of sequences."""
_FACTOR, _STEP, _MODULUS = 6364136223846793005, 1442695040888963407, 1 << 64
"""Of a linear congruential generator (Knuth's MMIX): nothing here may depend on chance, so this is enough."""
_AGAIN = 60
"""Draws of a bootstrap."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds (or tokens) until something happens."""

    mean: float
    """Given that it happens."""
    low: float
    """Of a 90 % interval of the mean."""
    high: float
    p50: float
    p90: float
    """`math.inf` where it does not happen so often."""
    happens: float = 1.0
    """Probability that it happens at all."""


class Lengths:
    """Recorded lengths of branches, in tokens. Raises `ValueError` without lengths, and for one below 1."""

    def __init__(self, lengths: Sequence[int]) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError("lengths of at least one token are needed")
        self.lengths: list[int] = sorted(lengths)

    def ended(self, n: int, k: int) -> list[float]:
        """Return P(the k-th of n has ended by then), for each length."""
        total = len(self.lengths)
        return [_probability_at_least(n, k, bisect_right(self.lengths, length) / total) for length in self.lengths]

    def times(self, n: int, step: Step | None) -> list[float]:
        """Return when a branch of each length ends, n having begun together; it is quicker as others have ended."""
        if step is None:
            return [float(length) for length in self.lengths]
        total, times, at, before = len(self.lengths), list[float](), 0.0, 0
        for i, length in enumerate(self.lengths):
            alive = max(1.0, n * (total - i) / total)
            at += (length - before) * step(alive)
            before = length
            times.append(at)
        return times


class Branches(Lengths):
    """Lengths of branches that are recorded, in tokens, and which of them succeeded (all, if that is not said)."""

    def __init__(self, lengths: Sequence[int], succeeded: Sequence[bool] | None = None) -> None:
        """Raises `ValueError` without lengths, for one below 1, and where the two are not of the same number."""
        super().__init__(lengths)
        good = [True] * len(lengths) if succeeded is None else list(succeeded)
        if len(good) != len(lengths):
            raise ValueError("lengths of at least one token are needed, and as many marks of success")
        self.succeeded: list[bool] = [mark for _, mark in sorted(zip(lengths, good, strict=True))]

    def first(self, n: int, step: Step | None = None) -> Prediction:
        """Predict when the first of n branches ends."""
        return self.quorum(n, 1, step)

    def quorum(self, n: int, k: int, step: Step | None = None) -> Prediction:
        """Predict when the k-th of n branches ends; k = n: when all have. Seconds with `step`, else tokens."""
        if not 1 <= k <= n:
            raise ValueError(f"of {n} branches {k} cannot have ended")
        return self._predicted(lambda branches: branches.ended(n, k), n, step)

    def success(self, n: int, step: Step | None = None) -> Prediction:
        """Predict when the first of n branches ends in success."""
        if n < 1:
            raise ValueError("at least one branch is needed")
        return self._predicted(lambda branches: branches.succeeded_by(n), n, step)

    def succeeded_by(self, n: int) -> list[float]:
        """Return P(one of n has succeeded by then), for each length."""
        total, so_far = len(self.lengths), 0
        chances: list[float] = []
        for i, (length, mark) in enumerate(zip(self.lengths, self.succeeded, strict=True)):
            so_far += mark
            later = i + 1
            ahead = so_far
            while later < total and self.lengths[later] == length:
                ahead += self.succeeded[later]
                later += 1
            chances.append(1.0 - (1.0 - ahead / total) ** n)
        return chances

    def _predicted(self, chances: Callable[[Branches], list[float]], n: int, step: Step | None) -> Prediction:
        mean, p50, p90, happens = self._figures(chances(self), n, step)
        again: list[float] = []
        size, state = len(self.lengths), n
        for _ in range(_AGAIN):
            picks: list[int] = []
            for _ in range(size):
                state = (state * _FACTOR + _STEP) % _MODULUS
                picks.append((state >> 33) * size >> 31)
            drawn = Branches([self.lengths[i] for i in picks], [self.succeeded[i] for i in picks])
            figures = drawn._figures(chances(drawn), n, step)
            if figures[3] > 0:
                again.append(figures[0])
        again.sort()
        low, high = (again[len(again) // 20], again[-1 - len(again) // 20]) if again else (mean, mean)
        return Prediction(mean, low, high, p50, p90, happens)

    def _figures(self, chances: list[float], n: int, step: Step | None) -> tuple[float, float, float, float]:
        happens = chances[-1]
        if happens <= 0.0:
            return math.inf, math.inf, math.inf, 0.0
        times = self.times(n, step)
        mean = before = 0.0
        p50 = p90 = math.inf
        for time, chance in zip(times, chances, strict=True):
            mean += time * (chance - before)
            before = chance
            p50 = time if chance >= 0.5 and p50 == math.inf else p50
            p90 = time if chance >= 0.9 and p90 == math.inf else p90
        return mean / happens, p50, p90, happens


class Problems:
    """Recorded branches of several problems, for a further one like them. Branches of one problem are more like one
    another than those of several: taken together as draws of one distribution they would make the first of many end too
    soon. So it is predicted for each problem, and the problems are averaged; intervals come from drawing the problems
    again.

    >>> apart, together = Problems([Branches([10]), Branches([90])]), Branches([10, 90])
    >>> apart.first(8).mean, round(together.first(8).mean, 1)
    (50.0, 10.3)
    """

    def __init__(self, problems: Sequence[Branches]) -> None:
        """Raises `ValueError` without any."""
        if not problems:
            raise ValueError("recorded branches of at least one problem are needed")
        self.problems: list[Branches] = list(problems)

    def first(self, n: int, step: Step | None = None) -> Prediction:
        """As `Branches.first`."""
        return self.quorum(n, 1, step)

    def quorum(self, n: int, k: int, step: Step | None = None) -> Prediction:
        """As `Branches.quorum`."""
        if not 1 <= k <= n:
            raise ValueError(f"of {n} branches {k} cannot have ended")
        return self._predicted(lambda distribution: distribution.ended(n, k), n, step)

    def success(self, n: int, step: Step | None = None) -> Prediction:
        """As `Branches.success`."""
        if n < 1:
            raise ValueError("at least one branch is needed")
        return self._predicted(lambda distribution: distribution.succeeded_by(n), n, step)

    def _predicted(self, chances: Callable[[Branches], list[float]], n: int, step: Step | None) -> Prediction:
        spread: list[tuple[float, float]] = []
        figures: list[tuple[float, float]] = []
        for problem in self.problems:
            before, total = 0.0, 0.0
            for time, chance in zip(problem.times(n, step), chances(problem), strict=True):
                spread.append((time, chance - before))
                total += time * (chance - before)
                before = chance
            figures.append((total, before))
        size, state, again = len(figures), n, list[float]()
        happens = sum(mass for _, mass in figures) / size
        if happens <= 0.0:
            return Prediction(math.inf, math.inf, math.inf, math.inf, math.inf, 0.0)
        for _ in range(_AGAIN):
            time = mass = 0.0
            for _ in range(size):
                state = (state * _FACTOR + _STEP) % _MODULUS
                one = figures[(state >> 33) * size >> 31]
                time, mass = time + one[0], mass + one[1]
            again += [time / mass] if mass else []
        again.sort()
        mean = sum(time for time, _ in figures) / size / happens
        low, high = (again[len(again) // 20], again[-1 - len(again) // 20]) if again else (mean, mean)
        p50 = p90 = math.inf
        so_far = 0.0
        for time, mass in sorted(spread):
            so_far += mass / size
            p50 = time if so_far >= 0.5 - 1e-9 and p50 == math.inf else p50
            p90 = time if so_far >= 0.9 - 1e-9 and p90 == math.inf else p90
        return Prediction(mean, low, high, p50, p90, happens)


def _probability_at_least(n: int, k: int, p: float) -> float:
    """Return P(at least k of n), each with probability p."""
    if p >= 1.0:
        return 1.0
    if p <= 0.0:
        return 0.0
    odds, term, total = math.log(p) - math.log1p(-p), n * math.log1p(-p), 0.0
    for i in range(n + 1):
        if i >= k:
            total += math.exp(term)
        if i < n:
            term += math.log((n - i) / (i + 1)) + odds
    return min(1.0, total)
