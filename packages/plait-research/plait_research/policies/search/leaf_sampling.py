"""Searches that choose leaves by their rewards: `rebase` in shares, `particle` by resampling, `ets` by shares and
pruning that prefers leaves with shared prefixes (Efficient Tree Search)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from plait.core.declarations import Fidelity, Free
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.core.vocabulary import Count, N
from plait.policies.search._rounds import Rounds

from .trees import Stride, Strides

__all__ = [
    "BalancedRounds",
    "Ets",
    "Particle",
    "Rebase",
    "draw_probabilities",
    "select_by_program",
    "select_by_tree",
    "share_children",
]


Paths = Sequence[Sequence[int]]
"""For each leaf the nodes of its path, from the root to the leaf. Nodes are numbers."""


def select_by_tree(weights: Sequence[float], paths: Paths, cost: Mapping[int, float]) -> list[int]:
    """Return the leaves that maximise the sum of their weights minus the cost of the nodes on their paths; each node
    counts once. At least one leaf is kept.

    Exact, in time linear in the nodes: `g(v) = weight(v) - cost(v) + sum over children of max(0, g)`.
    """
    children: dict[int, dict[int, None]] = {}
    leaf_of = {path[-1]: i for i, path in enumerate(paths)}
    order: dict[int, None] = {}
    for path in paths:
        for above, below in zip(path, path[1:], strict=False):
            children.setdefault(above, {})[below] = None
        order |= dict.fromkeys(path)
    gain: dict[int, float] = {}
    seen: list[int] = []
    stack = [path[0] for path in paths[:1]]
    while stack:  # parents before children
        node = stack.pop()
        seen.append(node)
        stack.extend(children.get(node, ()))
    for node in reversed(seen):
        own = weights[leaf_of[node]] if node in leaf_of else 0.0
        gain[node] = own - cost.get(node, 0.0) + sum(max(0.0, gain[child]) for child in children.get(node, ()))
    kept: list[int] = []
    stack = [path[0] for path in paths[:1]]
    while stack:
        node = stack.pop()
        if node in leaf_of:
            kept.append(leaf_of[node])
        below = list(children.get(node, ()))
        wanted = [child for child in below if gain[child] > 0]
        if not wanted and below and node not in leaf_of:
            wanted = [max(below, key=lambda child: gain[child])]
        stack.extend(wanted)
    return sorted(kept)


def select_by_program(
    weights: Sequence[float], paths: Paths, cost: Mapping[int, float], clusters: Sequence[int], diversity: float
) -> list[int] | None:
    """Return the leaves with `diversity / K` added for each of the K clusters with a kept leaf: the integer program of
    ETS (arXiv 2502.13575), solved by `scipy.optimize.milp`, or `None` without scipy or a solution."""
    import numpy as np

    try:
        from scipy import optimize, sparse  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return None

    solver: Any = optimize
    inner = dict.fromkeys(node for path in paths for node in path[:-1])
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(clusters))}
    n, m, k = len(weights), len(inner), len(kinds)
    at = {node: n + place for place, node in enumerate(inner)}
    gain = [weights[i] - (0.0 if path[-1] in at else cost.get(path[-1], 0.0)) for i, path in enumerate(paths)]
    gain += [-cost.get(node, 0.0) for node in inner] + [diversity / k] * k
    # A kept leaf or node requires its parent node, and so its whole path.
    needs = {at[below]: at[above] for path in paths for above, below in zip(path[:-1], path[1:-1], strict=False)}
    needs |= {
        i: at[path[-1] if path[-1] in at else path[-2]]
        for i, path in enumerate(paths)
        if len(path) > 1 or path[0] in at
    }
    entries = [(row, *entry) for row, pair in enumerate(needs.items()) for entry in zip(pair, (1.0, -1.0), strict=True)]
    first = len(needs)
    entries += [(first + j, n + m + j, 1.0) for j in range(k)]  # a cluster requires a leaf
    entries += [(first + kinds[kind], i, -1.0) for i, kind in enumerate(clusters)]
    entries += [(first + k, i, -1.0) for i in range(n)]  # at least one leaf
    rows, columns, values = zip(*entries, strict=True)
    matrix: Any = sparse.csr_array((values, (rows, columns)), shape=(first + k + 1, n + m + k))
    solution = solver.milp(
        c=-np.array(gain),
        constraints=solver.LinearConstraint(matrix, ub=np.array([0.0] * (first + k) + [-1.0])),
        integrality=np.ones(n + m + k),
        bounds=solver.Bounds(0, 1),
        options={"time_limit": 5.0},
    )
    return None if solution.x is None else [i for i in range(n) if solution.x[i] > 0.5]


class Rebase(Search):
    """Node i of a depth, sorted by score, gets `n_i = ceil(W · e^(r_i / T) / sum of e^(r / T) over the rest)` children;
    W and the rest shrink with each node (arXiv 2408.00724). A node that ended in an answer reduces W by 1.

    `stride` gives the same shares without waiting for a complete depth.
    """

    fidelity = Fidelity(
        "variant", "no share is rounded up beyond the width", oracles=("rebase-shares",), paper="2408.00724"
    )

    per_depth: Count = Field(default=16, ge=1, le=10_000, description="Children of a depth: W.")
    reward_temperature: float = Field(
        default=0.2, gt=0, description="Temperature of the scores: T_R, small favours the best."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the rounds of one run."""
        return BalancedRounds(tree, self.per_depth, self.reward_temperature)


class BalancedRounds(Rounds):
    """Rounds that allot children by score."""

    def __init__(self, tree: SearchTree, budget: int, temperature: float) -> None:
        super().__init__(tree, budget)
        self._budget, self._temperature = budget, temperature
        self._finished = 0

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        self._finished += sum(node.outcome in ("answer", "dead") for node in came)
        going = [node for node in came if node.outcome == "open"]
        ranked = sorted(going, key=lambda node: (-self.tree.prior(node), node.key, node.name))
        left = self._budget - self._finished
        ranked = self.choose(ranked, left)
        counts = share_children([self.tree.prior(node) for node in ranked], left, self._temperature)
        return [node for node, count in zip(ranked, counts, strict=True) for _ in range(count)]

    def choose(self, ranked: list[SearchNode], left: int) -> list[SearchNode]:
        """Return the open nodes of a depth, best first, that share the `left` children."""
        return ranked


def share_children(scores: list[float], budget: int, temperature: float) -> list[int]:
    """Return the number of children for each score. The scores are in descending order.

    >>> share_children([0.9, 0.8, 0.5, 0.2], 64, 0.2)
    [37, 22, 5, 0]
    """
    counts: list[int] = []
    weights = [math.exp((score - scores[0]) / temperature) for score in scores]
    for i, weight in enumerate(weights):
        rest = sum(weights[i:])  # summed again each time, since a running difference may fall below 0
        count = math.ceil(max(budget, 0) * weight / rest) if rest else 0
        counts.append(count)
        budget -= count
    return counts


_LEAST = 1e-7
"""Minimum of a score and of 1 minus the score, so that the logit is finite."""


class Particle(Search):
    """`n` trajectories take one step each; then as many are resampled with replacement by their scores' odds
    (particle filtering, arXiv 2502.01618: weights are the softmax of the scores' logits). Ended ones stay.

    With `iterations` > 1 it is particle Gibbs: a finished trajectory, drawn by its weight, is the reference particle of
    the next pass and is never lost. Each resampling draws one particle less, and may draw the reference up to the
    current depth. At the end the next reference is drawn from all, including the old one.

    Differs from its_hub: resampling is systematic, which has less variance than independent draws with the same odds.
    """

    fidelity = Fidelity(
        "variant",
        "systematic resampling with the same odds; the kept line is weighed as far as the others have come",
        oracles=("its-hub-odds", "its-hub-gibbs"),
        paper="2502.01618",
    )

    n: N = Field(default=8, le=10_000)
    iterations: Count = Field(default=1, ge=1, description="Passes from the root.")
    reward_temperature: float = Field(
        default=1.0, gt=0, description="Temperature of the scores: small favours the best."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the particles of one run."""
        return _Particles(tree, self)


class _Particles(Rounds):
    def __init__(self, tree: SearchTree, options: Particle) -> None:
        super().__init__(tree, options.n)
        self._options = options
        self._ended: list[SearchNode] = []
        self._reference: list[SearchNode] = []
        self._depth = 0
        self._iteration = 1

    def settle(self, came: list[SearchNode]) -> list[SearchNode]:
        self._depth += 1
        particles = [node for node in came if node.outcome in ("open", "answer")] + self._ended
        kept = self._reference[min(self._depth, len(self._reference) - 1)] if self._reference else None
        if kept is not None:
            particles.append(kept)
        if not particles:
            return []
        drawn = self._resample(particles, self._options.n - (kept is not None)) if self._free else []
        self._ended = [node for node in drawn if node.outcome == "answer"]
        going = [node for node in drawn if node.outcome != "answer"]
        for node in going:
            if node.outcome == "expanded":  # a node of the reference trajectory
                node.outcome = "open"
        return going or self._next_iteration()

    @property
    def _free(self) -> bool:
        """Whether there are particles beside the reference trajectory."""
        return self._options.n > 1 or not self._reference

    def _next_iteration(self) -> list[SearchNode]:
        """Begin the next iteration, with a finished trajectory as one of its particles."""
        finished = self._ended + self._reference[-1:]
        if self._iteration >= self._options.iterations or not finished:
            return []
        self._iteration += 1
        (kept,) = self._resample(finished, 1)
        self._reference, self._ended, self._depth = kept.path(), [], 0
        self.tree.root.outcome = "open"
        return [self.tree.root] * max(1, self._options.n - 1)

    def _resample(self, nodes: list[SearchNode], count: int) -> list[SearchNode]:
        """Draw nodes with replacement, by systematic resampling: the number of each differs from its expectation by
        less than one."""
        weights = draw_probabilities([self.tree.prior(node) for node in nodes], self._options.reward_temperature)
        step = sum(weights) / count
        at = self.tree.random.random() * step
        drawn: list[SearchNode] = []
        reached = 0.0
        for node, weight in zip(nodes, weights, strict=True):
            reached += weight
            while at < reached and len(drawn) < count:
                drawn.append(node)
                at += step
        return drawn or [nodes[-1]]


def draw_probabilities(scores: list[float], temperature: float = 1.0) -> list[float]:
    """Return the probability of drawing each score: the softmax of the logits.

    >>> [round(each, 2) for each in draw_probabilities([0.5, 0.75])]
    [0.25, 0.75]
    """
    clipped = [min(max(score, _LEAST), 1 - _LEAST) for score in scores]
    logits = [math.log(score / (1 - score)) / temperature for score in clipped]
    most = max(logits)
    weights = [math.exp(logit - most) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


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
