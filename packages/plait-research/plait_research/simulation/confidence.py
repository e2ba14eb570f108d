"""A simulated model's confidence for each token, synthetic or recorded, for policies that prune by confidence.

Groups and signals are computed from the confidences of single tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.result import Result, Signals
from plait.core.sampling import Sampling

Confidence = Callable[[Job, Result, Random], Sequence[float]]
"""The confidence C_t (nats, see `Signals`) of each token of a result, at least `usage.completion` of them. The random
numbers depend only on seed, step and try, like an outcome's."""

NEWS_PER_WINDOW = 8
"""Number of group reports per window of a step that does not stream, as in engines."""


def synthetic(level: float = 8.0, spread: float = 1.5, noise: float = 2.0, memory: float = 0.8) -> Confidence:
    """Return confidences that vary around a level of their trace.

    The trace's level is normal around `level` with deviation `spread`; its tokens follow a first-order autoregression
    with that mean, deviation `noise` and correlation `memory` from one to the next, and are never below 0. All in nats.
    """

    def confidence(job: Job, result: Result, rng: Random) -> list[float]:
        mean = rng.gauss(level, spread)
        step = noise * math.sqrt(max(0.0, 1.0 - memory * memory))
        drift = rng.gauss(0.0, noise)
        figures: list[float] = []
        for _ in range(result.usage.completion):
            figures.append(max(0.0, mean + drift))
            drift = memory * drift + rng.gauss(0.0, step)
        return figures

    return confidence


@dataclass(slots=True)
class SimTrace:
    """The confidences of one attempt, as sums over its first 0, 1, 2, … tokens."""

    sums: list[float]
    window: int
    lowest: float = math.inf
    upto: int = 0
    """Number of tokens that `lowest` covers."""

    @classmethod
    def of(cls, confidences: Sequence[float], sampling: Sampling) -> SimTrace:
        sums = [0.0]
        for confidence in confidences:
            sums.append(sums[-1] + confidence)
        return cls(sums, sampling.window)

    def told(self, upto: int) -> tuple[float | None, float | None]:
        """Return the mean of the last full window of the first `upto` tokens, and the lowest such mean so far."""
        if not self.window or upto < self.window:
            return None, None
        for end in range(max(self.upto + 1, self.window), upto + 1):
            self.lowest = min(self.lowest, self._group(end, self.window))
        self.upto = max(self.upto, upto)
        return self._group(upto, self.window), self.lowest

    def signals(self, k: int) -> Signals | None:
        """Return the statistics of the whole trace, or `None` without tokens. Signals without a source in confidences
        are stand-ins: the entropy is `log k` at the lowest possible confidence and falls exponentially as it rises."""
        count = len(self.sums) - 1
        if not count:
            return None
        size = self.window if 0 < self.window <= count else count
        groups = sorted(self._group(end, size) for end in range(size, count + 1))
        few = max(1, len(groups) // 10)
        mean = self.sums[-1] / count
        most = math.log(k) if k > 1 else 1.0
        return Signals(
            k=k,
            window=self.window,
            confidence=mean,
            tail=self._group(count, size),
            bottom=math.fsum(groups[:few]) / few,
            lowest=groups[0],
            entropy=min(most, most * math.exp(most - mean)),
            certainty=mean if k == -1 else None,
        )

    def _group(self, end: int, size: int) -> float:
        return (self.sums[end] - self.sums[end - size]) / size


def looks(sampling: Sampling) -> bool:
    """Return whether settings request the model's confidence."""
    return sampling.logprobs not in (0, 1)


def trace_of(confidence: Confidence, job: Job, result: Result, rng: Random, given: int, tokens: int) -> SimTrace:
    """Return the trace of an attempt that generates `tokens` after the `given` tokens of its checkpoint. As in an
    engine, statistics cover only its own tokens. Raises `ConfigError` for too few confidences."""
    assert job.op.kind == "think"
    figures = confidence(job, result, rng)
    if len(figures) < given + tokens:
        raise ConfigError(f"`confidence` gave {len(figures)} figures for the {given + tokens} tokens of {job.step}")
    return SimTrace.of(figures[given : given + tokens], job.op.sampling)
