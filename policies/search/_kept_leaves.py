"""Which leaves of a tree to keep: their weight against the cost of the paths that they need (the objective of ETS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["by_program", "by_tree"]

Paths = Sequence[Sequence[int]]
"""For each leaf the nodes of its path, root first, the leaf last. Nodes are numbers."""


def by_tree(weights: Sequence[float], paths: Paths, cost: Mapping[int, float]) -> list[int]:
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


def by_program(
    weights: Sequence[float], paths: Paths, cost: Mapping[int, float], clusters: Sequence[int], diversity: float
) -> list[int] | None:
    """Return the same with `diversity / K` added for each of the K clusters of which a leaf is kept: the integer
    program of ETS (arXiv 2502.13575), solved by `scipy.optimize.milp`. `None` without scipy, or if it finds nothing."""
    import numpy as np

    try:
        from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return None

    solver: Any = optimize
    inner = sorted({node for path in paths for node in path[:-1]})
    kinds = sorted(set(clusters))
    n, m, k = len(weights), len(inner), len(kinds)
    at = {node: n + i for i, node in enumerate(inner)}
    gain = [weights[i] - (0.0 if paths[i][-1] in at else cost.get(paths[i][-1], 0.0)) for i in range(n)]
    gain += [-cost.get(node, 0.0) for node in inner] + [diversity / k] * k
    rows: list[list[float]] = []

    def row(entries: Mapping[int, float]) -> None:
        rows.append([entries.get(i, 0.0) for i in range(n + m + k)])

    for i, path in enumerate(paths):
        for node in path if path[-1] in at else path[:-1]:
            row({i: 1.0, at[node]: -1.0})  # a leaf needs its path
    for j, kind in enumerate(kinds):
        row({n + m + j: 1.0} | {i: -1.0 for i in range(n) if clusters[i] == kind})  # a cluster needs a leaf
    row(dict.fromkeys(range(n), -1.0))
    limits = [0.0] * (len(rows) - 1) + [-1.0]
    found = solver.milp(
        c=-np.array(gain),
        constraints=solver.LinearConstraint(np.array(rows), ub=np.array(limits)),
        integrality=np.ones(n + m + k),
        bounds=solver.Bounds(0, 1),
        options={"time_limit": 5.0},
    )
    return None if found.x is None else [i for i in range(n) if found.x[i] > 0.5]
