"""Searches by rounds: each depth is written and scored completely, then the search allots children to its nodes."""

from __future__ import annotations

from collections import deque

from plait.core.search import Frontier, SearchNode, SearchTree


class Rounds(Frontier):
    """Hands out the children of one round; `settle` plans the next round when all children have ended."""

    def __init__(self, tree: SearchTree, first: int) -> None:
        super().__init__(tree)
        self.ready: deque[SearchNode] = deque([tree.root] * first)
        """The nodes that get a child, once for each child."""
        self.came: list[SearchNode] = []
        """Nodes of this round that have ended."""

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        """Return the next round's nodes, once for each child. `came` has this round's nodes in the order of names."""
        raise NotImplementedError

    def ended(self, node: SearchNode) -> None:
        """Add an ended node to its round."""
        self.came.append(node)

    def take(self) -> SearchNode | None:
        """Return the next node of the round; after the last node, plan the next round."""
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
