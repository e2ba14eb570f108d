"""Search `rebase`: REBASE, a share of the width for each node of a depth by its score; depth by depth."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count
from plait.policies.search._rounds import Rounds

__all__ = ["BalancedRounds", "Rebase", "share_children"]


class Rebase(Search):
    """Of each depth, sorted by score, node i gets `n_i = ceil(W · e^(r_i / T) / sum of e^(r / T) over the rest)`
    children; both W and the rest shrink in turn (arXiv 2408.00724). A node that has ended in an answer takes 1 off W.

    `stride` gives the same shares without waiting for a depth to be whole.
    """

    fidelity = Fidelity(
        "variant", "no share is rounded up beyond the width", oracles=("rebase-shares",), paper="2408.00724"
    )

    per_depth: Count = Field(default=16, ge=1, le=10_000, description="Children of a depth: W.")
    reward_temperature: float = Field(
        default=0.2, gt=0, description="Temperature of the scores: T_R, small favours the best."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the rounds of one run."""
        return BalancedRounds(tree, self.per_depth, self.reward_temperature)


class BalancedRounds(Rounds):
    """Rounds whose children are shared out by score."""

    def __init__(self, tree: SearchTree, budget: int, temperature: float) -> None:
        super().__init__(tree, budget)
        self._budget, self._temperature = budget, temperature
        self._finished = 0

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        self._finished += sum(node.outcome in ("answer", "dead") for node in came)
        going = [node for node in came if node.outcome == "open"]
        ranked = sorted(going, key=lambda node: (-self.tree.prior(node), node.key, node.name))
        left = self._budget - self._finished
        ranked = self.choose(ranked, left)
        counts = share_children([self.tree.prior(node) for node in ranked], left, self._temperature)
        return [node for node, count in zip(ranked, counts, strict=True) for _ in range(count)]

    def choose(self, ranked: list[SearchNode], left: int) -> list[SearchNode]:
        """Return the open nodes of a depth, the best first, that share the `left` children."""
        return ranked


def share_children(scores: list[float], budget: int, temperature: float) -> list[int]:
    """Return the number of children for each score. The scores are in descending order.

    >>> share_children([0.9, 0.8, 0.5, 0.2], 64, 0.2)
    [37, 22, 5, 0]
    """
    counts: list[int] = []
    weights = [math.exp((score - scores[0]) / temperature) for score in scores]
    for i, weight in enumerate(weights):
        rest = sum(weights[i:])  # summed again each time: a running difference may end below 0
        count = math.ceil(max(budget, 0) * weight / rest) if rest else 0
        counts.append(count)
        budget -= count
    return counts
