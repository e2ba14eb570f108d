"""How benchmarks measure: contenders in turn, round by round, and ratios taken within a round.

A machine's speed drifts; a ratio of two things done a second apart drifts much less. Knows nothing of what is measured.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Contender = Callable[[], Awaitable[float]]
"""One run of one contender; returns its figure (a time or a rate)."""


class Spread(NamedTuple):
    """Median, smallest and largest of several measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}–{self.high:.3g})"


class Row(NamedTuple):
    """One line of a benchmark's table."""

    what: str
    ours: str
    baseline: str
    ratio: str
    goal: str = ""


@dataclass(frozen=True)
class Rounds:
    """Figures of all contenders, one list each, in round order."""

    figures: Mapping[str, list[float]]

    def spread(self, name: str) -> Spread:
        """Return the spread of one contender's figure."""
        return spread(self.figures[name])

    def ratio(self, name: str, baseline: str) -> Spread:
        """Return the spread of name ÷ baseline, taken round by round."""
        return spread([a / b for a, b in zip(self.figures[name], self.figures[baseline], strict=True)])


def spread(values: list[float]) -> Spread:
    """Return median, minimum and maximum."""
    return Spread(statistics.median(values), min(values), max(values))


async def interleave(
    contenders: Mapping[str, Contender], rounds: int, warmup: int = 1, seconds: float = math.inf
) -> Rounds:
    """Run all contenders in turn, `rounds` times after `warmup` rounds that do not count. Every other round runs them
    in reverse order, so that none always comes after the same one. No round begins that would probably end after so
    many `seconds`, but one always does."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.monotonic()
    for number in range(-warmup, rounds):
        spent, done = time.monotonic() - began, number + warmup
        if number > 0 and spent * (done + 1) / done > seconds:
            break
        order = list(contenders.items())
        for name, contender in order if number % 2 == 0 else reversed(order):
            gc.collect()  # no benchmark pays for another's garbage
            figure = await contender()
            if number >= 0:
                figures[name].append(figure)
    return Rounds(figures)
