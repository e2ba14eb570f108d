"""Stop rule `semantic-entropy`: end the vote when the answers have low entropy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.sampling_theory import semantic_entropy
from plait.core.view import Branch

from .._stopping import Poll, StopRule

__all__ = ["SemanticEntropy"]


class SemanticEntropy(StopRule):
    """Semantic entropy as in SEAT (arXiv 2507.06829), in nats. Equal answers form a class.

    SE = -sum of p_k ln p_k over the shares of the answers, plus Miller and Madow's (K - 1) / 2N for the entropy that N
    samples of K answers miss. Two rules:

    - `threshold`: stop at SE <= `entropy`, with at least `min_votes` votes and `top` for the first answer: a few equal
      votes prove little, as small models often agree on a wrong answer.
    - `secretary`, without a threshold: windows of `window` branches in the join's order are rounds. The first
      floor(R/e) of R rounds (at least one) only set the threshold; the vote ends at the first later round whose entropy
      is below theirs.

    In the study `erring-votes`, the threshold rule lost no accuracy against the full vote; `secretary` lost 1.2 points,
    and 5 points at one level of skill.

    The paper votes in the stopping round and its rounds read one another (`refine` with `stop_entropy` does that); here
    branches are independent and all finished ones vote. Its thresholds are not published: the default is ours.
    """

    fidelity = Fidelity("variant", "answers that are equal, not judged alike", paper="2507.06829")

    rule: Literal["threshold", "secretary"] = Field(default="threshold", description="Which of the two.")
    entropy: float = Field(default=0.4, ge=0.0, description="Most entropy at which to stop, in nats.")
    min_votes: int = Field(
        default=4, ge=2, description="Votes below which not to stop; without a meaning for `secretary`."
    )
    top: int = Field(default=3, ge=1, description="Votes that the first answer must have to stop by the threshold.")
    window: int = Field(default=8, ge=2, description="Branches in a round.")

    def enough(self, poll: Poll) -> str | None:
        """Return the entropy as soon as it is low enough."""
        if self.rule == "secretary":
            return self._by_rounds(poll)
        first, _ = poll.lead()
        if poll.votes < self.min_votes or first < self.top:
            return None
        entropy = semantic_entropy(list(poll.counts.values()))
        return f"semantic entropy {entropy:.4g} over {poll.votes} votes" if entropy <= self.entropy else None

    def _by_rounds(self, poll: Poll) -> str | None:
        told = poll.fold(self, lambda: _Rounds([branch.step for branch in poll.branches], self.window))
        stop = secretary(told.entropies, told.count)
        if stop is None:
            return None
        return f"round {stop + 1} of {told.count} has semantic entropy {told.entropies[stop]:.4g}"


class _Rounds:
    """The rounds of a vote, and the entropies of the ended rounds before the first unfinished one."""

    def __init__(self, steps: Sequence[str], size: int) -> None:
        self._places = {step: place for place, step in enumerate(steps)}
        self._size, self.count = size, len(steps) // size
        self._ended = [0] * (self.count + 1)
        self._counts: list[Counter[str]] = [Counter() for _ in self._ended]
        self.entropies: list[float] = []

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        at = self._places[branch.step] // self._size
        self._ended[at] += 1
        if key is not None:
            self._counts[at][key] += 1
        # Rounds are judged in order, so a later round that ends early waits.
        while len(self.entropies) < self.count and self._ended[len(self.entropies)] == self._size:
            counts = self._counts[len(self.entropies)]
            self.entropies.append(semantic_entropy(list(counts.values())) if counts else math.inf)


def secretary(entropies: Sequence[float], rounds: int) -> int | None:
    """Return the round (from 0) of `rounds` to stop at, or `None` if no known round qualifies yet.

    The first floor(rounds/e) rounds (at least one) only set the threshold; the vote ends after the last round anyway.
    """
    looked = max(1, math.floor(rounds / math.e))
    if len(entropies) <= looked:
        return None
    best = min(entropies[:looked])
    return next((at for at in range(looked, len(entropies)) if entropies[at] < best), None)
