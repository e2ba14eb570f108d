"""Accept or reject a change by a paired test on held-out problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class PairedTest(NamedTuple):
    """The result of a paired test."""

    accepted: bool
    wins: int
    """Number of problems on which the change scores higher."""
    losses: int
    p: float
    more: float
    """Mean difference of the scores of a problem."""

    def __str__(self) -> str:
        word = "accepted" if self.accepted else "refused"
        return f"{word}: better on {self.wins}, worse on {self.losses}, {self.more:+.3g} a problem, p = {self.p:.3g}"


def sign_p(wins: int, losses: int) -> float:
    """Return the probability of at least this number of wins if wins and losses are equally likely: the exact one-sided
    sign test (for scores of 0 and 1 McNemar's, 1947)."""
    n = wins + losses
    return sum(math.comb(n, k) for k in range(wins, n + 1)) / 2**n


def flip_p(differences: Sequence[float], draws: int = 20_000) -> float:
    """Return the probability of an equal or higher sum of differences if each sign is equally likely: the one-sided
    paired randomisation test (Fisher, 1935; Pitman, 1937). For differences of one size it is the exact sign test;
    otherwise it is sampled with seed 0."""
    told = [difference for difference in differences if difference]
    # With one size only the number of wins matters, which has an exact test.
    if len({abs(difference) for difference in told}) < 2:
        return sign_p(sum(difference > 0 for difference in told), sum(difference < 0 for difference in told))
    sizes, total = np.asarray(told), math.fsum(told) - 1e-9
    rng = np.random.default_rng(0)
    high = sum(
        int(np.count_nonzero((rng.integers(0, 2, (1000, sizes.size)) * 2 - 1) @ sizes >= total))
        for _ in range(draws // 1000)
    )
    # The observed sum counts as a draw, so that the probability is never 0.
    return (high + 1) / (draws + 1)


def paired_test(before: Sequence[float], after: Sequence[float], level: float = 0.1, tried: int = 1) -> PairedTest:
    """Test the score differences on the same problems. A change without effect, or for the worse, is accepted with a
    probability of at most `level`, even as the best of `tried` changes (Bonferroni). Raises `ValueError` for unequal
    numbers of scores.

    An invalid score of the change counts as a loss as large as the largest difference; if both scores are invalid, the
    difference is 0.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} scores before and {len(after)} after cannot be paired")
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if not math.isnan(old)]
    known = [new - old for old, new in pairs if not math.isnan(new)]
    # An invalid score of the change must not help it.
    lost = len(pairs) - len(known)
    differences = [*known, *[-max(map(abs, known), default=1.0) or -1.0] * lost]
    wins, losses = sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
    p, more = flip_p(differences), math.fsum(differences) / max(1, len(before))
    return PairedTest(more > 0 and p <= level / max(1, tried), wins, losses, p, more)


def halving(
    candidates: Sequence[T], score: Callable[[T, int, int], Sequence[float]], problems: int, keep: int = 3
) -> tuple[T, int]:
    """Return the best candidate and the number of problems run, by successive halving (arXiv 1502.07943): all
    candidates run on a few problems, the best third on three times as many, and so on, each problem once a candidate.

    Args: candidates: values to try, such as thresholds or widths. At least one. score: returns a candidate's scores on
        the problems from one number up to another. problems: number of problems for the last candidates. keep: one in
        `keep` candidates reaches the next round.
    """
    left = list(candidates)
    rounds = max(1, math.ceil(math.log(max(2, len(left)), keep)))
    sums, done, spent = [0.0] * len(left), 0, 0
    for number in range(rounds):
        upto = problems if number == rounds - 1 else max(1, problems // keep ** (rounds - 1 - number))
        if upto > done:
            for place, candidate in enumerate(left):
                scores = score(candidate, done, upto)
                sums[place] += sum(score for score in scores if not math.isnan(score))
                spent += len(scores)
            done = upto
        order = sorted(range(len(left)), key=lambda place: -sums[place])
        order = order[: 1 if number == rounds - 1 else max(1, len(left) // keep)]
        left, sums = [left[place] for place in order], [sums[place] for place in order]
    return left[0], spent
