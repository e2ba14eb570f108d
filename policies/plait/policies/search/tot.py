"""Search `tot`: breadth first by proposed steps, as in Tree of Thoughts."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

from ._rounds import Rounds

__all__ = ["Tot"]


class Tot(Search):
    """One call proposes a node's next steps, one a line; the `keep` best of a depth continue (arXiv 2305.10601).

    The planner's `depth` is the number of steps (4 for the Game of 24). Differs: equal states are scored once and
    merged, and the answer is voted for by score, where the authors report any of the last beam's.
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
