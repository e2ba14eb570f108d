"""Search `best-first`: the node with the best score gets its children first."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

from ._ranked_frontier import Key, RankedFrontier

__all__ = ["BestFirst"]


class BestFirst(Search):
    """Children of the best node first, `branch` of each.

    As in HF search-and-learn, without its barrier: a node is offered as soon as it is scored.
    """

    fidelity = Fidelity("idea")

    branch: Count = Field(default=3, ge=1, le=1_000, description="Children of a node.")
    along: Literal["last", "min", "mean"] = Field(
        default="last", description="A node's worth: its own score, or the least or the mean along its path."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return a queue by score."""
        return _Best(tree, self)


class _Best(RankedFrontier):
    def __init__(self, tree: SearchTree, options: BestFirst) -> None:
        self._along = options.along
        super().__init__(tree, options.branch)

    def rank(self, node: SearchNode, child: int) -> Key:
        if self._along == "last":
            return (-self.tree.prior(node), child)
        scores = [self.tree.prior(step) for step in node.path()[1:]] or [0.5]
        return (-(min(scores) if self._along == "min" else sum(scores) / len(scores)), child)
