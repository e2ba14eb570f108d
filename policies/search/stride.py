"""Search `stride`: children in proportion to e^(score/temperature), without waiting for a depth to be whole."""

from __future__ import annotations

import math

from pydantic import Field

from plait.core.search import Frontier, Node, Search, SearchTree

from ._ranked import Key, Ranked

__all__ = ["Stride", "Strides"]


class Stride(Search):
    """Proportional shares by stride scheduling (Waldspurger and Weihl, 1995): child j of a node has the rank
    `c + (j + 1) / e^(score / temperature)`, where c is the rank of the last child started when the node was scored.

    For nodes that are scored together this gives REBASE's shares (arXiv 2408.00724): scores .9, .8, .5 and .2 with
    64 children give 36, 22, 5 and 1. Nodes that are scored late get their share from then on.
    """

    temperature: float = Field(default=0.2, gt=0)
    """How much the score counts (T_R): small favours the best."""
    branch: int | None = Field(default=None, ge=1, le=1_000)
    """Most children of a node; no limit by default."""

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return a queue by stride."""
        return Strides(tree, self.branch, self.temperature)


class Strides(Ranked):
    """Ranks children by stride."""

    def __init__(self, tree: SearchTree, branch: int | None, temperature: float) -> None:
        self._temperature = temperature
        self._last = 0.0
        self._since: dict[Node, float] = {}
        super().__init__(tree, branch)

    def rank(self, node: Node, child: int) -> Key:
        """Return c + (child + 1) / w."""
        since = self._since.setdefault(node, self._last)
        return (since + (child + 1) * math.exp((1.0 - self.tree.prior(node)) / self._temperature),)

    def taken(self, node: Node) -> None:
        """Move the clock to the child that starts now."""
        (rank,) = self.rank(node, len(node.children))
        self._last = max(self._last, float(rank))
        super().taken(node)
