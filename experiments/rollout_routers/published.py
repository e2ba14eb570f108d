"""The events of an engine's prefix cache in virtual time, as vLLM publishes its own."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from plait_research.simulation.tokens import PrefixCache

from .engines import BLOCK, CACHE, Engine

Key = tuple[int, tuple[int, ...]]
Publish = Callable[[int, list[dict[str, Any]], Sequence[int]], None]
"""Takes an engine, events, and the context that has been stored."""


class _Blocks(OrderedDict[Key, int]):
    """The blocks of a cache; records those that come and those that go."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[tuple[Key, int]] = []
        self.removed: list[int] = []

    def __setitem__(self, key: Key, number: int) -> None:
        super().__setitem__(key, number)
        self.stored.append((key, number))

    def popitem(self, last: bool = True) -> tuple[Key, int]:
        key, number = super().popitem(last)
        self.removed.append(number)
        return key, number


class PublishedCache(PrefixCache):
    """A prefix cache that publishes what it stores and removes, with hashes of a block's context as vLLM's are."""

    def __init__(self, place: int, publish: Publish) -> None:
        super().__init__(CACHE, BLOCK)
        self._place, self._publish = place, publish
        self._kept = _Blocks()
        self._blocks = self._kept
        self._hashes: dict[int, int | None] = {0: None}
        """By a block's number."""
        self._copies: Counter[int | None] = Counter()
        """Blocks of a hash: where the one before it was evicted, a block is stored again."""

    def add(self, ids: Sequence[int]) -> None:
        super().add(ids)
        kept, events = self._kept, list[dict[str, Any]]()
        for (before, tokens), number in kept.stored:
            self._hashes[number] = hash((self._hashes[before], tokens)) & (1 << 63) - 1
            self._copies[self._hashes[number]] += 1
        removed = [self._hashes.pop(number) for number in kept.removed]
        self._copies.subtract(removed)
        gone = [each for each in dict.fromkeys(removed) if not self._copies[each]]
        if gone:
            events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})
        if kept.stored:
            parent = kept.stored[0][0][0]
            events.append({
                "type": "BlockStored", "block_hashes": [self._hashes[number] for _, number in kept.stored],
                "parent_block_hash": self._hashes[parent], "block_size": BLOCK, "lora_id": None, "medium": "GPU",
                "token_ids": [token for (_, tokens), _ in kept.stored for token in tokens],
            })  # fmt: skip
        kept.stored, kept.removed = [], []
        if events:
            self._publish(self._place, events, ids)


def publish_caches(engines: Sequence[Engine], publish: Publish) -> None:
    """Give each engine a cache that calls `publish(place, events, context)`."""
    for place, engine in enumerate(engines):
        engine.cache = PublishedCache(place, publish)
