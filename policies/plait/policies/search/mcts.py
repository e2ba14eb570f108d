"""Search `mcts`: Monte Carlo tree search with several nodes in flight."""

from __future__ import annotations

import math
from collections import deque

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

__all__ = ["Mcts", "Visits"]


class Mcts(Search):
    """Descends from the root by `Q + explore · P · sqrt(N) / (1 + n)` (PUCT) and adds a child if a node has fewer than
    `ceil(widen · N^growth)` (progressive widening). A node's score is its value, and updates the path above it.

    With `rollout` each new child gets this number of steps at once, as in LATS, and these nodes stay in the tree. If
    every node has a score, selecting again after each step is better.

    Nodes in flight count as visits without a value, as in WU-UCT (arXiv 1810.11755), so that several nodes can be in
    flight. Equal states are merged and share their statistics. P is the node's score among its siblings'.
    """

    fidelity = Fidelity("variant", "PUCT with virtual visits, several in flight", paper="1810.11755")

    explore: float = Field(default=0.3, ge=0, description="Weight of what was visited little (c).")
    widen: float = Field(default=2.0, gt=0, description="Children at the first visit (k).")
    growth: float = Field(default=0.25, ge=0, le=1, description="How children grow with visits.")
    rollout: Count = Field(default=0, ge=0, description="Number of further steps of a new node.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the statistics of one run."""
        return Visits(tree, self)


class Visits(Frontier):
    """Visits and values of nodes."""

    def __init__(self, tree: SearchTree, options: Mcts) -> None:
        super().__init__(tree)
        self._options = options
        self._rolling: deque[tuple[SearchNode, int]] = deque()
        self._flying: dict[SearchNode, int] = {}
        self._counted: set[SearchNode] = set()
        self._left: dict[tuple[SearchNode | None, int], int] = {}
        """Remaining rollout steps after a node in flight, by the node's parent and child number."""

    def ended(self, node: SearchNode) -> None:
        """Propagate a node's value up the path: the score of an open node or an answer, 0 for a dead end."""
        value = self.tree.prior(node) if node.outcome in ("open", "answer", "merged") else 0.0
        for above in node.path():
            above.visits += 1
            above.value += value
        left = self._left.pop((node.parent, node.index), self._options.rollout)
        if node.outcome == "open" and left:
            self._rolling.append((node, left - 1))

    def take(self) -> SearchNode | None:
        """Descend from the root to a node that may have one more child."""
        while self._rolling:
            node, left = self._rolling.popleft()
            if node.outcome == "open":
                self._left[node, len(node.children) + 1] = left
                return node
        return self._descend(self.tree.root, self._in_flight())

    def _in_flight(self) -> dict[SearchNode, int]:
        """Return the number of nodes in flight at or below each node. Only nodes that were added or removed since the
        last call are counted again."""
        pending, flying = set(self.tree.pending), self._flying
        for change, nodes in ((1, pending - self._counted), (-1, self._counted - pending)):
            for node in nodes:
                for above in node.path():
                    flying[above] = flying.get(above, 0) + change
        self._counted = pending
        return flying

    def _descend(self, node: SearchNode, flying: dict[SearchNode, int]) -> SearchNode | None:
        path: list[SearchNode] = []
        dead: set[SearchNode] = set()
        while True:
            visits = node.visits + flying.get(node, 0)
            if node.outcome == "open" and len(node.children) < self._max_width(visits):
                return node
            best = self._best(node, visits, flying, dead)
            if best is not None:
                path.append(node)
                node = best
            elif node.outcome == "open" and node not in self.tree.pending and not self._is_waiting(node):
                return node  # All descendants are closed: widen further.
            elif path:
                dead.add(node)
                node = path.pop()
            else:
                return None

    def _max_width(self, visits: float) -> int:
        return math.ceil(self._options.widen * max(visits, 1.0) ** self._options.growth)

    def _is_waiting(self, node: SearchNode) -> bool:
        """Return whether children of a node are in flight, so that the node need not widen yet."""
        return any(child in self.tree.pending for child in node.children)

    def _best(
        self, node: SearchNode, visits: float, flying: dict[SearchNode, int], dead: set[SearchNode]
    ) -> SearchNode | None:
        open_ = [
            child
            for child in node.children
            if child.outcome == "open" and child not in self.tree.pending and child not in dead
        ]
        if not open_:
            return None
        total = sum(self.tree.prior(node) for node in open_) or 1.0

        def puct(child: SearchNode) -> float:
            n = child.visits + flying.get(child, 0)
            mean = child.value / child.visits if child.visits else self.tree.prior(child)
            prior = self.tree.prior(child) / total
            return mean + self._options.explore * prior * math.sqrt(max(visits, 1.0)) / (1 + n)

        return max(open_, key=lambda child: (puct(child), -child.index))
