"""Searches by rounds: one depth is written and scored whole, then it is settled who gets how many children."""

from __future__ import annotations

from collections import deque

from plait.core.search import Frontier, SearchNode, SearchTree


class Rounds(Frontier):
    """Hands out the children of one round; `settle` plans the next when all of them have ended."""

    def __init__(self, tree: SearchTree, first: int) -> None:
        super().__init__(tree)
        self.ready: deque[SearchNode] = deque([tree.root] * first)
        """A node is in it once for each child that it gets."""
        self.came: list[SearchNode] = []
        """Those of this round that have ended."""

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        """Return the nodes of the next round, each once a child. `came` is this round, in the order of names."""
        raise NotImplementedError

    def ended(self, node: SearchNode) -> None:
        """Count a node in."""
        self.came.append(node)

    def take(self) -> SearchNode | None:
        """Return the next node of the round; between rounds settle the next."""
        if not self.ready and not self.tree.pending and self.came:
            came, self.came = sorted(self.came, key=lambda node: node.name), []
            new = set(came)
            for node in self.tree.nodes:
                if node.outcome == "open" and node not in new:
                    node.outcome = "expanded"
            self.ready.extend(self.settle(came))
            going = set(self.ready)
            for node in came:
                if node.outcome == "open" and node not in going:
                    node.outcome = "pruned"
        while self.ready:
            node = self.ready.popleft()
            if node.outcome == "open":
                return node
        return None
