"""Which leaves of a tree to keep: their weight against the cost of the paths that they need (the objective of ETS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["select_by_program", "select_by_tree"]

Paths = Sequence[Sequence[int]]
"""For each leaf the nodes of its path, root first, the leaf last. Nodes are numbers."""


def select_by_tree(weights: Sequence[float], paths: Paths, cost: Mapping[int, float]) -> list[int]:
    """Return the leaves that maximise the sum of their weights less the cost of the nodes that their paths touch, each
    node counted once. At least one leaf is kept.

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
    """Return the same with `diversity / K` added for each of the K clusters with a kept leaf: the integer
    program of ETS (arXiv 2502.13575), solved by `scipy.optimize.milp`. `None` without scipy, or if it finds nothing."""
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
    # what a variable needs: a leaf or node the node above it, and so all of its path
    needs = {at[below]: at[above] for path in paths for above, below in zip(path[:-1], path[1:-1], strict=False)}
    needs |= {
        i: at[path[-1] if path[-1] in at else path[-2]]
        for i, path in enumerate(paths)
        if len(path) > 1 or path[0] in at
    }
    entries = [(row, *entry) for row, pair in enumerate(needs.items()) for entry in zip(pair, (1.0, -1.0), strict=True)]
    first = len(needs)
    entries += [(first + j, n + m + j, 1.0) for j in range(k)]  # a cluster needs a leaf
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
