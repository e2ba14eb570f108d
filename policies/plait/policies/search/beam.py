"""Search `beam`: of each depth the best few continue."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

from ._ranked_frontier import Key, RankedFrontier
from ._rounds import Rounds

__all__ = ["Beam"]


class Beam(Search):
    """The `keep` best nodes of each depth get `branch` children each; ties go by state key. No answer is doubled to
    fill a beam up.

    With `barrier` a depth is scored before its best continue, as in HF search-and-learn. Without, the best of those
    scored so far continues as soon as there is room, `keep` at a depth: faster where steps differ in length, but a good
    node that comes late may find the places taken.
    """

    fidelity = Fidelity(
        "variant", "no lookahead, no answer doubled to fill up, its rounds are theirs", oracles=("sal-beam",)
    )

    keep: Count = Field(default=4, ge=1, le=10_000, description="Nodes kept per depth.")
    branch: Count = Field(default=4, ge=1, le=1_000, description="Children of a node.")
    barrier: bool = Field(default=True, description="Wait for the whole depth.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the beams of one run."""
        return _Barrier(tree, self) if self.barrier else _Open(tree, self)


class _Barrier(Rounds):
    def __init__(self, tree: SearchTree, options: Beam) -> None:
        super().__init__(tree, options.keep * options.branch)
        self._options = options

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        going = [node for node in came if node.outcome == "open"]
        best = sorted(going, key=lambda node: (-self.tree.prior(node), node.key, node.name))[: self._options.keep]
        return [node for node in best for _ in range(self._options.branch)]


class _Open(RankedFrontier):
    def __init__(self, tree: SearchTree, options: Beam) -> None:
        self._options = options
        self._going: dict[SearchNode, None] = {}
        self._places: Counter[int] = Counter()
        super().__init__(tree, options.branch)

    def max_children(self, node: SearchNode) -> int | None:
        return self._options.branch * (1 if node.parent is not None else self._options.keep)

    def rank(self, node: SearchNode, child: int) -> Key:
        return (-self.tree.prior(node), child)

    def take(self) -> SearchNode | None:
        while (node := super().take()) is not None:
            if node in self._going:
                return node
            if self._places[node.depth] < self._options.keep:
                self._places[node.depth] += 1
                self._going[node] = None
                return node
            node.outcome = "pruned"
        return None
