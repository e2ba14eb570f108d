"""Searches that rank every child that a node could get, and start the first of them: no depth waits for another."""

from __future__ import annotations

import heapq

from plait.core.search import Frontier, SearchNode, SearchTree

Key = tuple[float | str, ...]


class RankedFrontier(Frontier):
    """A queue of possible children. Each node is in it once, with the rank of its next child."""

    def __init__(self, tree: SearchTree, branch: int | None) -> None:
        super().__init__(tree)
        self.branch = branch
        """Most children of a node; `None`: as many as the search wants."""
        self._queue: list[tuple[Key, Key, int, SearchNode]] = []
        self._pushed = 0
        self.offer(tree.root)

    def rank(self, node: SearchNode, child: int) -> Key:
        """Return the rank of a node's next child, its `child`-th from 0; the smallest starts first."""
        raise NotImplementedError

    def ended(self, node: SearchNode) -> None:
        """Offer the children of a node that is open."""
        if node.outcome == "open":
            self.offer(node)

    def offer(self, node: SearchNode) -> None:
        """Put a node's next child into the queue. Equal ranks: by state key, so that completion order is no matter."""
        self._push(node, len(node.children))

    def max_children(self, node: SearchNode) -> int | None:
        """Return the most children that a node gets."""
        return self.branch

    def is_waiting(self, node: SearchNode) -> bool:
        """Return whether an open node shall not get its next child yet."""
        return False

    def take(self) -> SearchNode | None:
        """Return the node with the smallest rank, and offer its next child unless it has all."""
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
        """Take note that a node gets its next child now; it is not among its children yet."""
        following, most = len(node.children) + 1, self.max_children(node)
        if most is not None and following >= most:
            node.outcome = "expanded"
        else:
            self._push(node, following)

    def _push(self, node: SearchNode, child: int) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (self.rank(node, child), (node.key,), self._pushed, node))
