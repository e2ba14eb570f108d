"""How sure a model was: statistics of its token distributions (`Signals`), kept up to date token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from plait.core.result import Signals
from plait.core.sampling import Sampling

if TYPE_CHECKING:  # most jobs ask for no confidence, and numpy takes long to load
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
from plait.core.result import TokenDraws

NEWS_PER_WINDOW = 8
"""How often in a window's length a job that does not stream tells of its group."""


def measure(logprobs: NDArray[Any], whole: bool = False) -> tuple[Floats, Floats, Floats]:
    """Return the confidence, entropy and self-certainty of each position, in nats; shape (n,) each.

    `logprobs` has shape (n, k): the k largest log-probabilities of each position, or with `whole` all of them.

    - Confidence is `-(1/k) Σ_j log p_j` (DeepConf, arXiv 2508.15260).
    - Entropy is `-Σ_j p_j log p_j - r log r` with `r = 1 - Σ_j p_j`: what the k leave out counts as one more outcome.
    - Self-certainty is `-(1/V) Σ_j log(V p_j)`, that is, the confidence over all V tokens less `log V` (arXiv
      2502.18581); it means that only with `whole`.

    Tokens that a form rules out (probability 0) are left out of the means. Where that leaves fewer than two there was
    nothing to choose, and all three are NaN.
    """
    import numpy as np

    values = np.asarray(logprobs, dtype=np.float64)
    possible = np.isfinite(values)
    chances = np.exp(values)
    if possible.all():
        counts: Any = values.shape[1]
        confidence = -values.mean(axis=1)
        spread = -(chances * values).sum(axis=1)
    else:
        counts = possible.sum(axis=1)
        known = np.where(possible, values, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            confidence = np.where(counts < 2, np.nan, -known.sum(axis=1) / counts)
        spread = np.where(counts < 2, np.nan, -(chances * known).sum(axis=1))
    if not whole:
        rest = np.maximum(0.0, 1.0 - chances.sum(axis=1))
        spread -= rest * np.log(np.where(rest > 0.0, rest, 1.0))
    return confidence, spread, confidence - np.log(np.maximum(counts, 1))


class ConfidenceTrace:
    """The statistics of one generation. `add` takes the same time however long it has become."""

    __slots__ = ("_before", "_certain", "_entropy", "_filling", "_lowest", "_sums", "_told", "group", "k", "window")

    def __init__(self, k: int, window: int = 0) -> None:
        """Begin a generation whose `k` likeliest tokens are looked at (-1: all), in groups of `window` tokens."""
        self.k: int
        self.window: int
        self.k, self.window = k, window
        self.group: float | None = None
        """Mean confidence of the last full window."""
        self._lowest = math.inf
        self._sums = [0.0]
        """Sum of the confidences of the first 0, 1, 2, … tokens."""
        self._before = iter(self._sums)
        """The sums before the last window, from its first time full on."""
        self._filling = window - 1 if window else -1
        """Tokens that the first window lacks before its last one; -1 without windows."""
        self._entropy = 0.0
        self._certain = 0.0
        self._told = 0

    @classmethod
    def of(cls, sampling: Sampling) -> ConfidenceTrace | None:
        """Return the trace that the sampling settings ask for, if they do."""
        return cls(sampling.logprobs, sampling.window) if sampling.logprobs not in (0, 1) else None

    @property
    def lowest(self) -> float | None:
        """The lowest mean confidence of a full window so far."""
        return None if self.group is None else self._lowest

    def __len__(self) -> int:
        return len(self._sums) - 1

    def add(self, confidence: float, entropy: float, certainty: float = 0.0) -> None:
        """Take the next token's figures, as `measure` gives them; NaN leaves the token out."""
        if confidence != confidence:
            return
        sums = self._sums
        total = sums[-1] + confidence
        sums.append(total)
        self._entropy += entropy
        if certainty:
            self._certain += certainty
        if not self._filling:
            group = self.group = (total - next(self._before)) / self.window
            if group < self._lowest:
                self._lowest = group
        elif self._filling > 0:
            self._filling -= 1

    def due(self) -> bool:
        """Whether the group has moved on by an eighth of a window since this last said so."""
        if self.group is None or len(self._sums) - self._told < max(1, self.window // NEWS_PER_WINDOW):
            return False
        self._told = len(self._sums)
        return True

    def signals(self) -> Signals | None:
        """Return the statistics so far; `None` before the first token. O(n)."""
        count = len(self)
        if not count:
            return None
        import numpy as np

        sums = np.asarray(self._sums)
        mean = float(sums[-1]) / count
        size = self.window if 0 < self.window <= count else count
        groups = (sums[size:] - sums[:-size]) / size
        few = max(1, len(groups) // 10)
        return Signals(
            k=self.k,
            window=self.window,
            confidence=mean,
            tail=float(groups[-1]),
            bottom=float(np.partition(groups, few - 1)[:few].mean()),
            lowest=float(groups.min()),
            entropy=self._entropy / count,
            certainty=self._certain / count if self.k == -1 else None,
        )


def add_position(trace: ConfidenceTrace, logprobs: Sequence[float]) -> None:
    """Add the next token's log-probabilities: more than `trace.k` (with the sampled token's) or fewer are allowed."""
    likeliest = sorted(logprobs, reverse=True)
    if trace.k != -1:
        likeliest = likeliest[: trace.k]
    if likeliest and math.isfinite(likeliest[0]):
        import numpy as np

        confidence, entropy, certainty = measure(np.asarray([likeliest]), whole=trace.k == -1)
        trace.add(float(confidence[0]), float(entropy[0]), float(certainty[0]))


def token_draws(
    sampling: Sampling,
    logprobs: Sequence[float],
    end: tuple[int, float] | None = None,
    processed: bool = False,
    form: str = "",
) -> TokenDraws:
    """Return the record of tokens that were drawn with these settings. `form`: that of calls, which no setting names.

    Log-probabilities above 0, which rounding makes, become 0.
    """
    return TokenDraws(
        logprobs=tuple(min(0.0, logprob) for logprob in logprobs),
        end=None if end is None else (end[0], min(0.0, end[1])),
        processed=processed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        form=form if sampling.structured is None else sampling.structured.kind,
        others=sampling.others,
    )
