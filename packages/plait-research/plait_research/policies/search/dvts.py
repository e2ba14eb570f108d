"""Search `dvts`: several greedy searches in parallel."""

from __future__ import annotations

from collections import deque

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

__all__ = ["Dvts"]


class Dvts(Search):
    """Diverse verifier tree search of HF search-and-learn: `subtrees` greedy searches in parallel. The best of the
    `branch` children of a subtree's node continues. Subtrees do not wait for one another.
    """

    fidelity = Fidelity(
        "variant", "no lookahead, a subtree continues beside its answers, its rounds are theirs", oracles=("sal-dvts",)
    )

    subtrees: Count = Field(default=4, ge=1, le=1_000, description="Independent searches.")
    branch: Count = Field(default=4, ge=1, le=1_000, description="Children of a node; the best of them is kept.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the subtrees of one run."""
        return _Subtrees(tree, self)


class _Subtrees(Frontier):
    def __init__(self, tree: SearchTree, options: Dvts) -> None:
        super().__init__(tree)
        self._branch = options.branch
        self._ready: deque[SearchNode] = deque([tree.root] * (options.subtrees * options.branch))
        self._came: dict[int, list[SearchNode]] = {}

    def take(self) -> SearchNode | None:
        while self._ready:
            node = self._ready.popleft()
            if node.outcome == "open":
                if node not in self._ready:
                    node.outcome = "expanded"
                return node
        return None

    def ended(self, node: SearchNode) -> None:
        subtree = (node.path()[1].index - 1) // self._branch
        came = self._came.setdefault(subtree, [])
        came.append(node)
        if len(came) < self._branch:
            return
        del self._came[subtree]
        going = sorted((node for node in came if node.outcome == "open"), key=self._worth)
        for beaten in going[1:]:
            beaten.outcome = "pruned"
        self._ready.extend(going[:1] * self._branch)

    def _worth(self, node: SearchNode) -> tuple[float, str, str]:
        return (-self.tree.prior(node), node.key, node.name)
