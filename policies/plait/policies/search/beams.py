"""Searches that keep the best few: `beam`, `best-first`, `tot`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

from ._ranked_frontier import Key, RankedFrontier
from ._rounds import Rounds

__all__ = ["Beam", "BestFirst", "Tot"]


class Beam(Search):
    """The `keep` best nodes of each depth get `branch` children each; state keys break ties. Answers are not duplicated
    to fill a beam.

    A depth is scored completely before its best nodes continue, as in HF search-and-learn.
    """

    fidelity = Fidelity(
        "variant", "no lookahead, no answer doubled to fill up, its rounds are theirs", oracles=("sal-beam",)
    )

    keep: Count = Field(default=4, ge=1, le=10_000, description="Nodes kept per depth.")
    branch: Count = Field(default=4, ge=1, le=1_000, description="Children of a node.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the beams of one run."""
        return _Beams(tree, self)


class _Beams(Rounds):
    def __init__(self, tree: SearchTree, options: Beam) -> None:
        super().__init__(tree, options.keep * options.branch)
        self._options = options

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        going = [node for node in came if node.outcome == "open"]
        best = sorted(going, key=lambda node: (-self.tree.prior(node), node.key, node.name))[: self._options.keep]
        return [node for node in best for _ in range(self._options.branch)]


class BestFirst(Search):
    """The best node gets its children first, `branch` for each node.

    After HF search-and-learn, but without its barrier: a node is offered as soon as it is scored.
    """

    fidelity = Fidelity("idea")

    branch: Count = Field(default=3, ge=1, le=1_000, description="Children of a node.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return a queue by score."""
        return _Best(tree, self.branch)


class _Best(RankedFrontier):
    def rank(self, node: SearchNode, child: int) -> Key:
        return (-self.tree.prior(node), child)


class Tot(Search):
    """One call proposes a node's next steps, one a line; the `keep` best nodes of a depth continue (arXiv 2305.10601).

    The planner's `depth` is the number of steps (4 for the Game of 24). Differs: equal states are scored once and
    merged, and a vote by score chooses the answer, while the authors report any answer of the last beam.
    """

    fidelity = Fidelity("variant", "equal states are merged, a vote picks the answer", paper="2305.10601")

    lists: ClassVar[bool] = True

    keep: Count = Field(default=5, ge=1, le=10_000, description="Nodes kept per depth.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the rounds of one run."""
        return _Breadth(tree, self.keep)


class _Breadth(Rounds):
    def __init__(self, tree: SearchTree, keep: int) -> None:
        super().__init__(tree, 1)
        self._keep = keep

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        going = [node for node in came if node.outcome == "open"]
        return sorted(going, key=lambda node: (-self.tree.prior(node), node.key, node.name))[: self._keep]
