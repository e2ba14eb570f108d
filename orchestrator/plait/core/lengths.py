"""Estimates of an answer's tokens, shared by policies, server hints and prices, and formulas that estimate from a few
samples how many more are useful."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate

# The estimate of an answer's tokens, shared by policies, server hints and prices.
#
# The estimate uses the answers of ended steps with the same template: first siblings in the same run, then steps of
# earlier runs, then all calls to the same model with the same limit. With few samples, the limit supplies the rest of
# the estimate.


ENOUGH = 8
"""Lengths in a full sample. In a smaller sample each length has weight 1/8, and the next wider sample has the rest."""
LATEST = 64
"""Number of lengths kept per sample, the newest ones."""
SHARE = 0.3
"""Mean share of the token limit that an answer uses, before any similar answer has ended. Lengths are then assumed to
be exponentially distributed."""
QUANTILE = 0.7
"""Quantile of the lengths used as the expectation. Lengths are skewed, so the quantile is near or above their mean."""

_PRIOR = tuple(-math.log(1.0 - (i + 0.5) / ENOUGH) for i in range(ENOUGH))
"""Quantiles of the exponential distribution with mean 1."""


def quantile(values: Iterable[float], share: float) -> float:
    """Return the quantile of the values by nearest rank. Raises `ValueError` for no values.

    >>> quantile([40, 10, 30, 20], 0.5), quantile([40, 10, 30, 20], 0.51)
    (20, 30)
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no value has a quantile")
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def expected_tokens(
    limit: int, samples: Sequence[Sequence[int]] = (), *, known: int = 0, share: float = QUANTILE
) -> float:
    """Return the expected number of tokens that a step will still generate, at least 1; `limit` is its token limit.

    `samples` are the lengths of steps like it that ended, from the narrowest sample to the widest, the oldest length
    first. `known`: tokens generated so far, so only longer lengths count. An answer longer than all samples is expected
    to use the usual share of its remaining limit.

    >>> expected_tokens(1000, [[100] * 8])
    100.0
    >>> expected_tokens(1000, [[100] * 8], known=60), expected_tokens(1000, [[100] * 8], known=200)
    (40.0, 240.0)
    """
    longer: list[tuple[float, float]] = []
    rest = 1.0
    for sample in samples:
        if sample:
            latest = sample[-LATEST:]
            # A narrow sample has weight by its size; the next wider sample gets the remaining weight.
            weight = rest * min(1.0, len(latest) / ENOUGH)
            longer += [(length, weight / len(latest)) for length in latest if length > known]
            rest -= weight
            if rest <= 0.0:
                break
    if rest > 0.0:
        prior = (min(limit, SHARE * limit * multiple) for multiple in _PRIOR)
        longer += [(length, rest / ENOUGH) for length in prior if length > known]
    # The answer is longer than all samples: only the limit gives information.
    if not longer:
        return max(1.0, SHARE * (limit - known))
    longer.sort()
    so_far = list(accumulate(weight for _, weight in longer))
    length, _ = longer[bisect_left(so_far, share * so_far[-1] - 1e-9)]
    return max(1.0, float(min(length, limit) - known))


# Formulas that estimate from a few samples how many more are useful. Pure arithmetic on counts and rates. Planners use
# them before a vote, policies during a vote.


def branches_needed(p: float, epsilon: float) -> int:
    """Return N*, the fewest branches after which the next gains no more than `epsilon`: the smallest N with
    p * (1-p)^N <= epsilon (TTSPM, arXiv 2505.20522). `p` is the success rate of one branch, in 0..1."""
    if epsilon >= p:
        return 0
    if p >= 1.0:
        return 1
    return math.ceil(math.log(epsilon / p) / math.log1p(-p))


def beta_mean(successes: int, failures: int) -> float:
    """Return the mean of the posterior Beta(1 + successes, 1 + failures) of a success rate."""
    return (1 + successes) / (2 + successes + failures)


EXACT = 256
"""Maximum number of votes for exact integer binomial sums; their numbers, and the time, grow with the votes."""


def _half_tail(n: int, k: int) -> float:
    """Return P(X <= k) for X of n fair coins, k < n / 2: each term is a fraction of the one above it."""
    term = math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
    total, least = term, term * 1e-12
    while k and term > least:
        term *= k / (n - k + 1)
        k -= 1
        total += term
    return min(1.0, total)


@lru_cache(maxsize=65_536)
def majority_probability(first: int, second: int) -> float:
    """Return P(p1 > p2) for a uniform prior over two shares, given `first` and `second` votes; exact to rounding,
    and to nine digits above `EXACT` votes.

    This is the Beta integral of x^a (1-x)^b from 1/2 to 1, divided by the integral from 0 to 1 (Adaptive-Consistency,
    arXiv 2305.11860), in closed form 2^-(a+b+1) * sum of C(a+b+1, k) over k = 0..a. 4 votes to none give 0.969.
    """
    n = first + second + 1
    if n > EXACT:
        return 1.0 - _half_tail(n, second) if second <= first else _half_tail(n, first)
    below = sum(math.comb(n, k) for k in range(second + 1))  # of the same 2^n, and the shorter sum
    return (2**n - below) / 2**n


def votes_needed(first: int, second: int, confidence: float, most: int) -> int:
    """Return the number of votes after which the first answer leads with probability `confidence`, if further votes
    split as before (each share smoothed by one vote). Return `most` at most, as in a tie."""
    total = first + second + 2
    shares = (first + 1) / total, (second + 1) / total
    for more in range(max(0, most - first - second)):
        if majority_probability(first + round(more * shares[0]), second + round(more * shares[1])) >= confidence:
            return first + second + more
    return most


def semantic_entropy(counts: Sequence[int]) -> float:
    """Return the entropy of the answers' shares in nats, with Miller and Madow's correction (SEAT, arXiv 2507.06829).
    `counts` has the votes of each answer, one answer at least."""
    total = sum(counts)
    entropy = -math.fsum(count / total * math.log(count / total) for count in counts)
    return max(0.0, entropy) + (len(counts) - 1) / (2 * total)
