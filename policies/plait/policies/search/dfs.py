"""Search `dfs`: depth-first search with a few siblings in flight, for tool calls (DFSDT)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count

from ._ranked_frontier import Key, RankedFrontier

__all__ = ["Dfs"]


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
