"""Strategies of the planner `ssr`: the pool, and which of them a request gets."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pydantic import Field

from plait.core.values import Frozen

TRUST = 4.0
"""Runs that a mark counts as much as."""
COVER = 0.3
"""What a tag that no chosen strategy has adds to a score in [0, 1]."""


class Strategy(Frozen):
    """A way to go about a problem."""

    id: str = Field(min_length=1)
    text: str = Field(min_length=1)
    """Text for the model."""
    tags: tuple[str, ...] = ()
    """Kinds that it belongs to."""
    wins: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Earlier runs along it that came to a right answer."""
    losses: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """The others."""


_POOL = (
    ("cases", "structure", "Split the problem into cases and treat each of them."),
    ("backwards", "direction", "Work backwards from what is asked to what is given."),
    ("small", "pattern numbers", "Try small or extreme instances first, and look for a pattern."),
    ("equation", "algebra", "Name the unknowns, write equations, and solve them."),
    ("invariant", "numbers structure", "Look for a quantity that does not change, such as a parity or a remainder."),
    ("estimate", "check", "Estimate the answer and its bounds first, then make it exact."),
    ("count", "counting", "Count the same thing in two ways, or list the possibilities in order."),
    ("draw", "picture", "Describe the situation as a picture, a table or a diagram, and read the answer from it."),
    ("contradiction", "direction structure", "Assume the opposite, and follow it until something is wrong."),
    ("similar", "analogy", "Recall a similar problem whose solution is known, and carry it over."),
    ("subgoals", "structure direction", "Name intermediate results that would help, and reach them one after another."),
    ("check", "check", "Solve it in the plainest way, and put the result back into the problem to check it."),
)
POOL = tuple(Strategy(id=id_, text=text, tags=tuple(tags.split())) for id_, tags, text in _POOL)
"""Of no particular subject; give your own for a field that you know."""


def choose(
    pool: Sequence[Strategy],
    marks: Sequence[float | None],
    n: int,
    seed: int,
) -> list[Strategy]:
    """Return `n` strategies, best first: one after the other the one whose score, with `COVER` for each tag that none
    before it has, is largest. A pool that is smaller is taken again from its start.

    Args:
        pool: at least one. Without wins and losses the score of a strategy is its mark.
        marks: the target's, in [0, 1]; unknown ones count one half.
        seed: of the draws.
    """
    rng = random.Random(seed)
    scores: dict[int, float] = {}
    for place, (strategy, mark) in enumerate(zip(pool, marks, strict=True)):
        sure = 0.5 if mark is None else mark
        if strategy.wins or strategy.losses:
            sure = rng.betavariate(1 + strategy.wins + TRUST * sure, 1 + strategy.losses + TRUST * (1 - sure))
        scores[place] = sure
    chosen: list[int] = []
    left, tags = list(scores), set[str]()
    while left and len(chosen) < n:
        best = max(left, key=lambda place: (scores[place] + COVER * len(set(pool[place].tags) - tags), -place))
        chosen.append(best)
        left.remove(best)
        tags |= set(pool[best].tags)
    return [pool[chosen[i % len(chosen)]] for i in range(n)]
