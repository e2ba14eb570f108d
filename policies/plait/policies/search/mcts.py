"""Searches of single paths: `dfs`, depth-first search with a few siblings in flight, for tool calls (DFSDT); `mcts`,
Monte Carlo tree search with several nodes in flight."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

from ._ranked_frontier import Key, RankedFrontier

__all__ = ["Dfs", "Mcts", "Visits"]

_FIRST_CHILDREN = 2.0
"""Children of a node at its first visit."""


class Dfs(Search):
    """The deepest open node gets the next child; after a dead end the search backtracks. The first answer ends it.

    As in DFSDT of ToolLLM (arXiv 2307.16789), the prompt of a node's further child shows the earlier children and asks
    for a different one. Differs: `parallel` nodes may be in flight (theirs: 1); read-only calls are made once a run;
    the search does not backtrack past a call with side effects.

    With several nodes in flight, a node gets its next child once the previous child is written, so that the prompt can
    show it. The previous child's call and branch run while the next sibling is written. So no sibling is written twice.
    """

    fidelity = Fidelity(
        "variant",
        "several in flight, continues where the root's child gives up",
        oracles=("toolbench-dfs",),
        paper="2307.16789",
    )

    answers: ClassVar[int] = 1

    branch: Count = Field(default=2, ge=1, le=1_000, description="Children of a node.")
    parallel: Count = Field(default=2, ge=1, le=1_000, description="Nodes in flight.")
    back: Count = Field(
        default=2,
        ge=1,
        le=1_000,
        description="Levels to go back where the model gives a way up: with 2 the parent gets no more children. "
        "From another dead end, such as the greatest depth, it is one level, as in the authors' code.",
    )
    diverse: bool = Field(
        default=True,
        description="Show a node that is expanded again its earlier children. Without, siblings are written at the "
        "same time.",
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return a queue by depth."""
        return _Deepest(tree, self)


class _Deepest(RankedFrontier):
    reads_steps = True

    def __init__(self, tree: SearchTree, options: Dfs) -> None:
        self._options = options
        super().__init__(tree, options.branch)

    def rank(self, node: SearchNode, child: int) -> Key:
        return (-node.depth, *(step.index for step in node.path()), child)

    def take(self) -> SearchNode | None:
        return None if len(self.tree.pending) >= self._options.parallel else super().take()

    def is_waiting(self, node: SearchNode) -> bool:
        """Return whether a node's last child, which the next child's prompt shows, is still being generated."""
        last = node.children[-1] if node.children and self._options.diverse else None
        return last is not None and not last.step and last in self.tree.pending

    def ended(self, node: SearchNode) -> None:
        super().ended(node)
        above = node.parent
        for _ in range(self._options.back - 1 if node.gave_up else 0):
            if above is not None and above.parent is not None and above.outcome == "open":
                above.outcome = "expanded"
            above = above.parent if above is not None else None

    def say(self, node: SearchNode) -> str:
        tried = [child for child in node.children[:-1] if child.step.strip()]
        if not tried or not self._options.diverse:
            return ""
        listed = "".join(f"- {child.step.strip()}{_shorten(child.seen)}\n" for child in tried)
        return f"\nThis was tried here before:\n{listed}Do something else now.\n"


def _shorten(seen: str, most: int = 500) -> str:
    return "" if not seen.strip() else f" gave {seen.strip()[:most]}"


class Mcts(Search):
    """Descends from the root by `Q + explore · P · sqrt(N) / (1 + n)` (PUCT) and adds a child if a node has fewer than
    `ceil(2 · N^growth)` (progressive widening). A node's score is its value, and updates the path above it.

    With `rollout` each new child gets this number of steps at once, as in LATS, and these nodes stay in the tree. If
    every node has a score, selecting again after each step is better.

    Nodes in flight count as visits without a value, as in WU-UCT (arXiv 1810.11755), so that several nodes can be in
    flight. Equal states are merged and share their statistics. P is the node's score among its siblings'.
    """

    fidelity = Fidelity("variant", "PUCT with virtual visits, several in flight", paper="1810.11755")

    explore: float = Field(default=0.3, ge=0, description="Weight of what was visited little (c).")
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
        return math.ceil(_FIRST_CHILDREN * max(visits, 1.0) ** self._options.growth)

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
