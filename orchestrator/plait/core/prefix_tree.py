"""A tree of contexts: how much of a new one, from its start, was in an earlier one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

_Edges = dict[Hashable, tuple[tuple[Hashable, ...], "_Edges"]]


class PrefixTree:
    """Contexts of units (token ids or words), as a radix tree: an edge holds the units up to where contexts part."""

    def __init__(self) -> None:
        self._root: _Edges = {}
        self.size: int = 0
        """Units that it holds."""

    def add(self, units: Iterable[Hashable]) -> int:
        """Enter a context and return the number of units at its end that no earlier context has.

        >>> tree = PrefixTree()
        >>> tree.add("solve: 1"), tree.add("solve: 2")
        (8, 1)
        """
        rest, node = tuple(units), self._root
        while rest:
            there = node.get(rest[0])
            if there is None:
                node[rest[0]] = (rest, {})
                self.size += len(rest)
                return len(rest)
            edge, below = there
            same = len(edge)
            if rest[:same] != edge:
                same = next(i for i, unit in enumerate(edge) if i >= len(rest) or rest[i] != unit)
                below = {edge[same]: (edge[same:], below)}
                node[rest[0]] = (edge[:same], below)
            rest, node = rest[same:], below
        return 0
