"""Searches that rank every possible child and start the best one first: no depth waits for another."""

from __future__ import annotations

import heapq

from plait.core.search import Frontier, SearchNode, SearchTree

Key = tuple[float | str, ...]


class RankedFrontier(Frontier):
    """A queue of possible children. It holds each open node once, with the rank of the node's next child."""

    def __init__(self, tree: SearchTree, branch: int | None) -> None:
        super().__init__(tree)
        self.branch = branch
        """Maximum number of children of a node; `None`: no limit."""
        self._queue: list[tuple[Key, Key, int, SearchNode]] = []
        self._pushed = 0
        self.offer(tree.root)

    def rank(self, node: SearchNode, child: int) -> Key:
        """Return the rank of a node's child number `child` (from 0); the smallest rank starts first."""
        raise NotImplementedError

    def ended(self, node: SearchNode) -> None:
        """Offer the children of a node that is open."""
        if node.outcome == "open":
            self.offer(node)

    def offer(self, node: SearchNode) -> None:
        """Put a node's next child into the queue. State keys break ties, so that completion order does not matter."""
        self._push(node, len(node.children))

    def is_waiting(self, node: SearchNode) -> bool:
        """Return whether an open node must wait before it gets its next child."""
        return False

    def take(self) -> SearchNode | None:
        """Return the node with the smallest rank, and offer its next child unless it has its maximum."""
        waiting: list[tuple[Key, Key, int, SearchNode]] = []
        best: SearchNode | None = None
        while self._queue and best is None:
            entry = heapq.heappop(self._queue)
            if entry[-1].outcome != "open":
                continue
            if self.is_waiting(entry[-1]):
                waiting.append(entry)
            else:
                best = entry[-1]
        for entry in waiting:
            heapq.heappush(self._queue, entry)
        if best is not None:
            self.on_taken(best)
        return best

    def on_taken(self, node: SearchNode) -> None:
        """Record that a node gets its next child now; `node.children` does not contain the child yet."""
        following = len(node.children) + 1
        if self.branch is not None and following >= self.branch:
            node.outcome = "expanded"
        else:
            self._push(node, following)

    def _push(self, node: SearchNode, child: int) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (self.rank(node, child), (node.key,), self._pushed, node))
