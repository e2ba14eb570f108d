"""The prefix cache of a simulated engine: full blocks by hash chain, the least recently used dropped, as vLLM does."""

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
        place = whole = 0
        for start in range(0, (len(ids) - 1) // self.block * self.block, self.block):
            key = (place, tuple(ids[start : start + self.block]))
            number = self._blocks.get(key)
            if number is None:
                break
            self._blocks.move_to_end(key)
            place, whole = number, start + self.block
        return whole

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
