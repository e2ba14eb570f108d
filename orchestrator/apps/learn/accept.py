"""Whether a change is taken: by a paired test on problems that it was not made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

__all__ = ["Outcome", "halving", "paired_test", "sign_p"]

T = TypeVar("T")


class Outcome(NamedTuple):
    """The result of a paired test."""

    accepted: bool
    wins: int
    """Problems on which the change scores more."""
    losses: int
    p: float

    def __str__(self) -> str:
        word = "accepted" if self.accepted else "refused"
        return f"{word}: better on {self.wins}, worse on {self.losses}, p = {self.p:.3g}"


def sign_p(wins: int, losses: int) -> float:
    """Return the chance of so many wins or more where wins and losses are equally likely: the exact one-sided sign test
    (for scores of 0 and 1 McNemar's, 1947)."""
    n = wins + losses
    return sum(math.comb(n, k) for k in range(wins, n + 1)) / 2**n


def paired_test(before: Sequence[float], after: Sequence[float], level: float = 0.1, tried: int = 1) -> Outcome:
    """Test scores on the same problems. A change that makes things worse, or changes nothing, is accepted with a chance
    of `level` at most, even as the best of `tried` changes (Bonferroni). Raises `ValueError` for unequal numbers.

    Scores that are not numbers count as losses where they are the change's, and as no difference where both are.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} scores before and {len(after)} after cannot be paired")
    wins = losses = 0
    for old, new in zip(before, after, strict=True):
        if math.isnan(new) or math.isnan(old):
            losses += math.isnan(new) and not math.isnan(old)
            continue
        wins += new > old
        losses += new < old
    p = sign_p(wins, losses)
    return Outcome(wins > losses and p <= level / max(1, tried), wins, losses, p)


def halving(
    candidates: Sequence[T], score: Callable[[T, int, int], Sequence[float]], problems: int, keep: int = 3
) -> tuple[T, int]:
    """Return the best of several candidates and how many problems were run, by successive halving (arXiv 1502.07943):
    all are tried on a few problems, the best third on three times as many, and so on, each problem once a candidate.

    Args:
        candidates: what is tried: thresholds, widths. At least one.
        score: returns a candidate's scores on the problems from one number up to another.
        problems: how many there are for the last ones.
        keep: one of so many goes on.
    """
    left = list(candidates)
    rounds = max(1, math.ceil(math.log(max(2, len(left)), keep)))
    sums, done, spent = [0.0] * len(left), 0, 0
    for number in range(rounds):
        upto = problems if number == rounds - 1 else max(1, problems // keep ** (rounds - 1 - number))
        if upto > done:
            for place, each in enumerate(left):
                scores = score(each, done, upto)
                sums[place] += sum(each for each in scores if not math.isnan(each))
                spent += len(scores)
            done = upto
        order = sorted(range(len(left)), key=lambda place: -sums[place])
        order = order[: 1 if number == rounds - 1 else max(1, len(left) // keep)]
        left, sums = [left[place] for place in order], [sums[place] for place in order]
    return left[0], spent
