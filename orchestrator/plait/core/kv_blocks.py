"""Which blocks an engine's prefix cache holds, by the engine's own events, and what that says of prompts it was sent.

vLLM reports each block that it stores or evicts by a hash of the block and all blocks before it (vLLM:
`KVEventsConfig`). Here the hashes are a tree: a prompt that has ended is walked down it, and each block remembers the
newest attempt whose prompt passes through it. After an eviction, that attempt's prompt is held up to the block only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, NotRequired, TypedDict, cast

MAX_EVICTED_BLOCKS = 65_536
"""Evicted blocks that are remembered."""


class BlockStored(NamedTuple):
    """Consecutive blocks are in the cache."""

    hashes: Sequence[Hashable]
    parent: Hashable
    """Of the block before the first; `None` at the start of a context."""
    ids: Sequence[int]
    """Of all the blocks, `block` each."""
    block: int
    keys: Sequence[Hashable] = ()
    """What else a block's hash depends on (adapter, salt), one entry a block; empty: nothing."""


class BlockRemoved(NamedTuple):
    """Blocks are no longer in the cache."""

    hashes: Sequence[Hashable]


BlockEvent = BlockStored | BlockRemoved | None
"""`None`: the whole cache was emptied."""


class _Block(NamedTuple):
    before: Hashable
    """The block before it."""
    place: Hashable
    """Of it in `CachedBlocks._places`."""
    upto: int
    """Tokens from the start of the context to its end."""


class _Fields(TypedDict):
    block_hashes: list[Hashable]
    parent_block_hash: Hashable
    token_ids: list[int]
    block_size: int
    medium: NotRequired[str | None]
    group_idx: NotRequired[int | None]
    extra_keys: NotRequired[list[list[Hashable] | None] | None]
    lora_name: NotRequired[str | None]


def read(event: object) -> Iterator[BlockEvent]:
    """Yield an event of vLLM's, decoded from msgpack (a map with its `type`, or in older releases a list that begins
    with it), as one of the above. Nothing for blocks that are not in the engine's own memory, and for events of unknown
    kinds."""
    if isinstance(event, list):
        kind, *rest = cast("list[object]", event) or [""]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields = cast("_Fields", dict(zip(names, rest, strict=False)))
    else:
        fields = cast("_Fields", event)
        kind = cast("dict[str, object]", event).get("type", "")
    if kind == "AllBlocksCleared":
        yield None
        return
    if fields.get("medium") not in (None, "GPU") or fields.get("group_idx") not in (None, 0):
        return
    if kind == "BlockRemoved":
        yield BlockRemoved(fields["block_hashes"])
    if kind != "BlockStored":
        return
    keys = [tuple(key) if key else None for key in fields.get("extra_keys") or ()]
    if not keys and (name := fields.get("lora_name")):
        keys = [(name,)] * len(fields["block_hashes"])
    yield BlockStored(
        fields["block_hashes"], fields["parent_block_hash"], fields["token_ids"], fields["block_size"], keys
    )


_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
)  # fmt: skip
_REMOVED = ("block_hashes", "medium")


class CachedBlocks:
    """The blocks of one engine. Pure, and for one thread."""

    def __init__(self) -> None:
        self.block: int = 0
        """Tokens in a block, once it is known."""
        self._blocks: dict[Hashable, _Block] = {}
        self._places: dict[Hashable, Hashable] = {}
        """Hashes by the block's content: the block before it, its ids and its keys."""
        self._after: dict[Hashable, dict[Hashable, None]] = {}
        """The blocks that follow a block, which may be evicted itself."""
        self._cut: set[Hashable] = set()
        """Blocks behind an evicted block: no prompt reaches them."""
        self._newest: dict[Hashable, int] = {}
        """Attempts by blocks' hashes."""
        self._gone: dict[Hashable, int] = {}
        """The same of blocks that were evicted: another client may have them stored again."""
        self._evicts = False
        """Something was evicted; before that every prompt that was read is held."""
        self._held: dict[int, int] = {}
        """News: tokens held by attempt."""
        self._cleared = False

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, events: Iterable[BlockEvent]) -> None:
        """Take in what has changed, in order."""
        for event in events:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved(hashes=hashes):
                    for block in hashes:
                        self._removed(block)
                case None:
                    self.lose()

    def lose(self) -> None:
        """Forget everything: the cache was emptied, or events were lost."""
        for table in (self._blocks, self._places, self._after, self._cut, self._newest, self._gone, self._held):
            table.clear()
        self._cleared = self._evicts = True

    def count_cached_tokens(self, ids: Sequence[int], model: str = "", salt: str = "", attempt: int = 0) -> int:
        """Return the number of cached tokens at the start of a prompt: whole blocks. `model`: the adapter's name.
        `attempt`: remember that this prompt passed through the blocks."""
        before: Hashable = None
        upto, own = 0, (model,) if model else ()
        first = (*own, salt) if salt else own
        for end in range(self.block, len(ids) + 1, self.block) if self.block else ():
            keys = own if upto else first
            before = self._places.get((before, tuple(ids[upto:end]), keys or None))
            if before is None:
                break
            upto = end
            if attempt:
                self._newest[before] = attempt
        return upto

    def ended(self, attempt: int, ids: Sequence[int], model: str = "", salt: str = "", other: bool = False) -> None:
        """An attempt with this prompt is over. `other`: another engine had it, so this one is not taken to hold it."""
        held = self.count_cached_tokens(ids, model, salt, attempt)
        if held if other else self._evicts or held + self.block <= len(ids):
            self._held[attempt] = held

    def news(self) -> tuple[tuple[tuple[int, int], ...], bool] | None:
        """Return the changes since the last call, as the fields of a `CacheUpdate`, or `None` without any."""
        if not self._held and not self._cleared:
            return None
        news = tuple(self._held.items()), self._cleared
        self._held, self._cleared = {}, False
        return news

    def _stored(self, event: BlockStored) -> None:
        before, block = event.parent, event.block
        known = self._blocks.get(before)
        if before is not None and known is None:
            return  # what stands before it is not known, as events were lost: no prompt can be found there
        upto = known.upto if known is not None else 0
        self.block = block
        for number, name in enumerate(event.hashes):
            ids = tuple(event.ids[number * block : (number + 1) * block])
            place = before, ids, event.keys[number] if number < len(event.keys) else None
            upto += block
            if name not in self._blocks:
                self._blocks[name], self._places[place] = _Block(before, place, upto), name
                self._after.setdefault(before, {})[name] = None
                if before in self._cut:
                    self._cut.add(name)
                else:
                    self._cut.difference_update(self._behind(name))
                if (attempt := self._gone.pop(name, None)) is not None:
                    self._newest[name] = attempt
                    if name not in self._cut:
                        self._held[attempt] = upto
            before = name

    def _removed(self, name: Hashable) -> None:
        block = self._blocks.pop(name, None)
        if block is None:
            return
        self._evicts = True
        reached = name not in self._cut
        if reached:
            self._cut.update(self._behind(name))
        self._cut.discard(name)
        siblings = self._after[block.before]
        del siblings[name]
        if not siblings:
            del self._after[block.before]
        if self._places.get(block.place) == name:
            del self._places[block.place]
        if (attempt := self._newest.pop(name, None)) is None:
            return
        self._gone[name] = attempt
        if len(self._gone) > MAX_EVICTED_BLOCKS:
            del self._gone[next(iter(self._gone))]
        if reached:  # otherwise an earlier eviction, reported then, has cut more of it
            self._held[attempt] = block.upto - self.block

    def _behind(self, name: Hashable) -> list[Hashable]:
        """Return the blocks in the cache that stand behind a block, as far as there is no gap."""
        blocks = list(self._after.get(name, ()))
        for block in blocks:
            blocks += self._after.get(block, ())
        return blocks
