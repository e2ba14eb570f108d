"""Search `ets`: shares by score, and pruning that keeps what shares its prefix (Efficient Tree Search)."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from plait.core.search import Frontier, SearchNode, SearchTree

from ._kept_leaves import by_program, by_tree
from .stride import Stride, Strides

__all__ = ["Ets"]


class Ets(Stride):
    """`stride`, with pruning: whenever the live paths hold more than `limit` tokens, those leaves are kept that have
    most score share for the tokens of their paths, a shared prefix counted once (arXiv 2502.13575):

    `max sum O_i x_i - balance · cost / total cost + diversity / K · (clusters kept)`, with O_i = share of e^(r_i / T).

    Differs: a node costs its tokens, not 1; it prunes when memory is short, not once a depth. Exact by a recursion on
    the tree without `diversity`; with it by `scipy.optimize.milp`, and without scipy as if it were 0.
    """

    limit: int = Field(default=2048, ge=1, le=10_000)
    """Tokens of live paths above which it prunes, the prompt's apart. What is worth its tokens stays, even if that is
    more: `balance` says how much they weigh."""
    balance: float = Field(default=0.25, ge=0)
    """Weight of the cost (lambda_b)."""
    diversity: float = Field(default=0.0, ge=0)
    """Weight of clusters, equal last steps being one (lambda_d); the paper has 1.5 at width 16."""
    cost: Literal["tokens", "nodes"] = "tokens"
    """What a node costs; `nodes` is the paper's."""

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the queue and pruning of one run."""
        return _Pruning(tree, self)


class _Pruning(Strides):
    def __init__(self, tree: SearchTree, options: Ets) -> None:
        self._options = options
        self._most = 0
        """No more tokens than so many are resident: what was counted last, and all that came since."""
        self._bound = options.limit
        """It prunes above so many: after a pruning that keeps more than the limit, an eighth more than is kept."""
        super().__init__(tree, options)

    def ended(self, node: SearchNode) -> None:
        super().ended(node)
        self._most += node.tokens
        if self._most <= self._bound:
            return
        self._most = self.tree.resident()
        if self._most > self._bound:
            self._prune()
            self._most = self.tree.resident()
            self._bound = max(self._options.limit, self._most * 9 // 8)

    def _prune(self) -> None:
        leaves = [each for each in self.tree.nodes if each.outcome == "open" and each not in self.tree.pending]
        if len(leaves) < 2:
            return
        numbers = {each: i for i, each in enumerate(self.tree.nodes)}
        paths = [[numbers[each] for each in leaf.path()] for leaf in leaves]
        best = max(self.tree.prior(leaf) for leaf in leaves)
        weights = [math.exp((self.tree.prior(leaf) - best) / self._options.temperature) for leaf in leaves]
        total = sum(weights)
        weights = [weight / total for weight in weights]
        touched = {number for path in paths for number in path}
        own = {i: float(self.tree.nodes[i].tokens if self._options.cost == "tokens" else 1) for i in touched}
        scale = self._options.balance / (sum(own.values()) or 1.0)
        cost = {i: each * scale for i, each in own.items()}
        kept: list[int] | None = None
        if self._options.diversity:
            steps = sorted({leaf.step.strip() for leaf in leaves})
            kept = by_program(
                weights, paths, cost, [steps.index(leaf.step.strip()) for leaf in leaves], self._options.diversity
            )
        gone = {*leaves} - {leaves[i] for i in (by_tree(weights, paths, cost) if kept is None else kept)}
        for leaf in gone:
            leaf.outcome = "pruned"
        self.gave_up(gone)
