"""Searches that grow many paths: `dvts`, several greedy searches in parallel; `lats`, Monte Carlo tree search with
written reflections on failures; `stride`, children in proportion to e^(score/reward_temperature), without waiting for a
complete depth.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses, WithCallConfigs
from plait.core.declarations import Fidelity
from plait.core.flow import Context
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.step_handles import StepFailed
from plait.core.vocabulary import Count
from plait.policies.search.mcts import Mcts, Visits

__all__ = ["Dvts", "Lats", "Stride", "Strides"]


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


_FAILED = 0.5
"""Score below which an answer counts as failed."""
_REFLECT = "\n\nThis attempt failed. In two or three sentences: what went wrong, and what should be done otherwise?\n"


class Lats(WithCallConfigs, Mcts):
    """`mcts` with reflections (arXiv 2310.04406): if an answer scores below a half, the model writes two or three
    sentences on what to change. The prompts of later steps show them after the shared prefix.

    Differs: the scorer alone finds failures; the authors' code uses the grader. Nodes are kept, and run in parallel.
    """

    fidelity = Fidelity("variant", "the scorer describes the failure, not the grader, in parallel", paper="2310.04406")

    reflections: Count = Field(default=3, ge=0, description="Most reflections, all different.")
    summary: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(max_tokens=128), description="A reflection. Its template is put behind the failed attempt."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the statistics and reflections of one run."""
        return _Reflecting(tree, self)


class _Reflecting(Visits):
    def __init__(self, tree: SearchTree, options: Lats) -> None:
        super().__init__(tree, options)
        self._lats = options
        self._said: dict[str, None] = {}
        self._asked = 0

    async def learn(self, ctx: Context, question: str, node: SearchNode) -> None:
        failed = node.outcome == "answer" and node.score is not None and node.score < _FAILED
        if not failed or self._asked >= self._lats.reflections:
            return
        self._asked += 1
        asked = self._lats.summary
        pieces = [question, "\n", node.text, asked.text(_REFLECT)]
        try:
            reflection = await ctx.think(pieces, asked, name=f"{node.name}-reflection", label="reflection")
        except StepFailed:
            return
        if reflection.text.strip():
            self._said[reflection.text.strip()] = None

    def say(self, node: SearchNode) -> str:
        if not self._said:
            return ""
        return "\nLearned from earlier attempts:\n" + "".join(f"- {reflection}\n" for reflection in self._said)


_LEAST = -600.0
"""Maximum logarithm of a weight, so that sums and quotients of weights are finite and not 0."""


class Stride(Search):
    """REBASE's shares of children (arXiv 2408.00724) by stride scheduling (Waldspurger and Weihl, 1995).

    Child j of node v, from 0, has the rank `(j + 1) · W / w_v`, with `w_v = e^(score / reward_temperature)` and `W` the
    sum of w over the nodes of v's depth. So the n-th child of a depth has a rank of about n. The smallest rank starts
    first, whatever its depth, so all depths get about the same number of children. A node in flight counts in W with
    the mean w of its depth. An answer keeps its share, unused. A node that is scored late catches up.

    With `per_depth`, a child starts as soon as its rank would be within the budget even if all nodes in flight score 1.
    So the shares are those of `rebase` without the wait for a complete depth. Example: scores .9, .8, .5 and .2 with 64
    children get 36, 22, 5 and 1.
    """

    fidelity = Fidelity("variant", "the same shares without a barrier", paper="2408.00724")

    per_depth: Count | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Children of a depth: as in `rebase`; by default the planner's number of nodes is the only limit.",
    )
    reward_temperature: float = Field(
        default=0.2, gt=0, description="Temperature of the scores: T_R, small favours the best."
    )
    branch: Count | None = Field(default=None, ge=1, le=1_000, description="Children of a node: no limit by default.")

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return a queue by stride."""
        return Strides(tree, self)


@dataclass(slots=True)
class _Depth:
    """The nodes of one depth."""

    queue: list[tuple[float, str, int, SearchNode]] = field(default_factory=list[tuple[float, str, int, SearchNode]])
    """Each open node once, sorted by its next child's rank divided by W."""
    weights: dict[SearchNode, float] = field(default_factory=dict[SearchNode, float])
    total: float = 0.0
    """Sum of `weights`: the W of the formula without nodes in flight."""
    begun: int = 0
    """Number of children that have begun."""


class Strides(Frontier):
    """Ranks children by stride."""

    def __init__(self, tree: SearchTree, options: Stride) -> None:
        super().__init__(tree)
        self._options = options
        self._depths: list[_Depth] = []
        self._pushed = 0
        self.ended(tree.root)

    def ended(self, node: SearchNode) -> None:
        """Give a node its share, and offer its first child if it is open."""
        if node.outcome not in ("open", "answer"):
            return
        while len(self._depths) <= node.depth:
            self._depths.append(_Depth())
        depth = self._depths[node.depth]
        depth.weights[node] = math.exp(max(_LEAST, (self.tree.prior(node) - 1) / self._options.reward_temperature))
        depth.total += depth.weights[node]
        if depth.begun == self._options.per_depth:
            _close_children(node)
        elif node.outcome == "open":
            self._push(depth, node, 0)

    def on_given_up(self, nodes: Iterable[SearchNode]) -> None:
        """Return the shares of pruned nodes to the other nodes of their depths."""
        touched: set[int] = set()
        for node in nodes:
            if self._depths[node.depth].weights.pop(node, None) is not None:
                touched.add(node.depth)
        for number in touched:
            self._depths[number].total = sum(self._depths[number].weights.values())

    def take(self) -> SearchNode | None:
        """Return the node whose next child has the smallest rank.

        Shares are fractions but children are not, so a depth's budget has a remainder. It is allotted by rank when no
        node of the depth or above is in flight.
        """
        flying = Counter(node.depth for node in self.tree.pending)
        ranks: list[tuple[float, int]] = []
        above = 0
        for number, depth in enumerate(self._depths):
            self._clean(depth)
            above += flying[number]
            if not depth.queue:
                continue
            (stride, *_), flies = depth.queue[0], flying[number]
            certain = stride * (depth.total + flies)
            if self._options.per_depth is None or certain <= self._options.per_depth or not above:
                ranks.append((stride * depth.total * (1 + flies / max(1, len(depth.weights))), number))
        if not ranks:
            return None
        depth = self._depths[min(ranks)[1]]
        *_, node = heapq.heappop(depth.queue)
        depth.begun += 1
        if len(node.children) + 1 == self._options.branch:
            node.outcome = "expanded"
        else:
            self._push(depth, node, len(node.children) + 1)
        if depth.begun == self._options.per_depth:
            depth.queue.clear()
            for other in depth.weights:
                _close_children(other, other is node)
        return node

    def _clean(self, depth: _Depth) -> None:
        """Drop nodes at the head of a queue that are no longer open."""
        gone: list[SearchNode] = []
        while depth.queue and depth.queue[0][-1].outcome != "open":
            gone.append(heapq.heappop(depth.queue)[-1])
        if gone:
            self.on_given_up(gone)

    def _push(self, depth: _Depth, node: SearchNode, child: int) -> None:
        """Offer a node's next child. State keys break ties, so that the completion order does not matter."""
        self._pushed += 1
        heapq.heappush(depth.queue, ((child + 1) / depth.weights[node], node.key, self._pushed, node))


def _close_children(node: SearchNode, parent: bool = False) -> None:
    """Close a node, since its depth has all its children."""
    if node.outcome == "open":
        node.outcome = "expanded" if node.children or parent else "pruned"
