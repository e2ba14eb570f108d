"""Search `ets`: shares by score, and pruning that prefers leaves with shared prefixes (Efficient Tree Search)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from plait.core.declarations import Fidelity, Free
from plait.core.search import Frontier, SearchNode, SearchTree

from .leaf_sampling import BalancedRounds, select_by_program, select_by_tree, share_children
from .stride import Stride, Strides

__all__ = ["Ets"]


class Ets(Stride):
    """`stride` with pruning: whenever the live paths hold more than `limit` tokens, it keeps the leaves with the most
    score share for their paths' tokens, and counts a shared prefix once (arXiv 2502.13575):

    `max sum O_i x_i - balance · cost / total cost + diversity / K · (clusters kept)`, with O_i = share of e^(r_i / T).

    Differs: a node costs its tokens, not 1; it prunes when memory is short, not once a depth. Exact by a recursion on
    the tree without `diversity`; with it by `scipy.optimize.milp`, and without scipy as if it were 0.

    `variant=paper` is the authors' code: depth by depth, O_i are REBASE's whole shares, nodes cost 1, and kept nodes
    share the whole width again. Only the clusters differ: equal last steps here, embedded steps there.
    """

    fidelity = Fidelity("variant", "by default, exact with `variant=paper`", oracles=("ets-paper",), paper="2502.13575")

    variant: Literal["stream", "paper"] = Field(
        default="stream",
        description="`paper`: as the authors have it. Then `per_depth` is the width (16), and the defaults are theirs.",
    )
    limit: Annotated[int, Free()] = Field(
        default=2048,
        ge=1,
        le=10_000,
        description="Tokens of live paths above which it prunes, the prompt's apart. What is worth its tokens "
        "stays, even if that is more: `balance` says how much they weigh. Without meaning in `variant=paper`, which "
        "prunes each depth.",
    )
    balance: float | None = Field(
        default=None, ge=0, description="Weight of the cost (lambda_b): 0.25, in `variant=paper` 1."
    )
    diversity: float | None = Field(
        default=None,
        ge=0,
        description="Weight of clusters, equal last steps being one (lambda_d): 0, in `variant=paper` 1.5, which is "
        "for width 16.",
    )
    cost: Literal["tokens", "nodes"] | None = Field(
        default=None, description="What a node costs: its tokens, in `variant=paper` 1 (`nodes`)."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the queue and pruning of one run."""
        return _Paper(tree, self) if self.variant == "paper" else _Pruning(tree, self)

    def select_leaves(self, tree: SearchTree, leaves: Sequence[SearchNode], weights: Sequence[float]) -> list[int]:
        """Return the places of the leaves whose share exceeds the cost of their paths."""
        paper = self.variant == "paper"
        balance = self.balance if self.balance is not None else 1.0 if paper else 0.25
        diversity = self.diversity if self.diversity is not None else 1.5 if paper else 0.0
        by_tokens = self.cost == "tokens" or (self.cost is None and not paper)
        path_of = [leaf.path() for leaf in leaves]
        numbers = {node: i for i, node in enumerate(dict.fromkeys(node for path in path_of for node in path))}
        paths = [[numbers[node] for node in path] for path in path_of]
        own = {i: float(node.tokens if by_tokens else 1) for node, i in numbers.items()}
        scale = balance / (sum(own.values()) or 1.0)
        cost = {i: tokens * scale for i, tokens in own.items()}
        steps = list(dict.fromkeys(leaf.step.strip() for leaf in leaves))
        if diversity and not (paper and len(steps) < 2):  # the authors' code omits the term if all steps are equal
            kept = select_by_program(
                weights, paths, cost, [steps.index(leaf.step.strip()) for leaf in leaves], diversity
            )
            if kept is not None:
                return kept
        return select_by_tree(weights, paths, cost)


class _Paper(BalancedRounds):
    def __init__(self, tree: SearchTree, options: Ets) -> None:
        self._ets = options
        super().__init__(tree, options.per_depth or 16, options.reward_temperature)

    def choose(self, ranked: list[SearchNode], left: int) -> list[SearchNode]:
        counts = share_children([self.tree.prior(node) for node in ranked], left, self._ets.reward_temperature)
        total = sum(counts)
        if len(ranked) < 2 or not total:
            return ranked
        return [ranked[i] for i in self._ets.select_leaves(self.tree, ranked, [count / total for count in counts])]


class _Pruning(Strides):
    def __init__(self, tree: SearchTree, options: Ets) -> None:
        self._options = options
        self._most = 0
        """Upper bound of the resident tokens: the last count plus all tokens since."""
        self._bound = options.limit
        """Token threshold of the next pruning: the limit, or an eighth above the kept tokens if that is more."""
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
        leaves = [node for node in self.tree.nodes if node.outcome == "open" and node not in self.tree.pending]
        if len(leaves) < 2:
            return
        best = max(self.tree.prior(leaf) for leaf in leaves)
        weights = [math.exp((self.tree.prior(leaf) - best) / self._options.reward_temperature) for leaf in leaves]
        total = sum(weights)
        kept = self._options.select_leaves(self.tree, leaves, [weight / total for weight in weights])
        gone = {*leaves} - {leaves[i] for i in kept}
        for leaf in gone:
            leaf.outcome = "pruned"
        self.on_given_up(gone)
