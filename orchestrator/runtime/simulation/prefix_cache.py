"""Prefix caches of simulated engines, and the least that any could have to compute.

`PrefixCache` keeps full blocks by hash chain and drops the least recently used, as vLLM does; `Trie` holds every
context of a run and tells how many tokens of a new one were in none before. They know tokens, not jobs, hosts or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks of `block` tokens, `tokens` in all, each known together with all that stands before it."""

    def __init__(self, tokens: int, block: int) -> None:
        self.block = block
        self._most = tokens // block
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], int] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def cached(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt need not be computed, from its start: full blocks, never its last
        token."""
        place = found = 0
        for start in range(0, (len(ids) - 1) // self.block * self.block, self.block):
            key = (place, tuple(ids[start : start + self.block]))
            number = self._blocks.get(key)
            if number is None:
                break
            self._blocks.move_to_end(key)
            place, found = number, start + self.block
        return found

    def add(self, ids: Sequence[int]) -> None:
        """Keep the full blocks of a context. Its first blocks are the last to be dropped: without them the later ones
        cannot be found."""
        place = 0
        keys: list[tuple[int, tuple[int, ...]]] = []
        for start in range(0, len(ids) // self.block * self.block, self.block):
            if len(keys) >= self._most:
                break
            key = (place, tuple(ids[start : start + self.block]))
            number = self._blocks.get(key)
            if number is None:
                self._number += 1
                number = self._blocks[key] = self._number
            keys.append(key)
            place = number
        for key in reversed(keys):
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()


_Edges = dict[int, tuple[tuple[int, ...], "_Edges"]]


class Trie:
    """All contexts so far, as a radix tree: an edge holds the tokens up to where contexts part."""

    def __init__(self) -> None:
        self._root: _Edges = {}

    def add(self, ids: Sequence[int]) -> int:
        """Enter a context and return how many of its tokens, at its end, no earlier one has."""
        rest, node = tuple(ids), self._root
        while rest:
            there = node.get(rest[0])
            if there is None:
                node[rest[0]] = (rest, {})
                return len(rest)
            edge, below = there
            same = len(edge)
            if rest[:same] != edge:
                same = next(i for i, token in enumerate(edge) if i >= len(rest) or rest[i] != token)
                below = {edge[same]: (edge[same:], below)}
                node[rest[0]] = (edge[:same], below)
            rest, node = rest[same:], below
        return 0
