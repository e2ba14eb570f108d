"""Which blocks an engine's prefix cache holds, by the engine's own events, and what that says of prompts it was sent.

vLLM reports each block that it stores or evicts by a hash of the block and all blocks before it (vLLM:
`KVEventsConfig`). Here the hashes are a tree: a prompt that has ended is walked down it, and each block remembers the
newest attempt whose prompt passes through it. After an eviction, that attempt's prompt is held up to the block only.

A block may also be in the host's memory. Loading it costs less than computing it (`LOAD_COST`), so tokens that only the
host holds count for what that saves, and a block that leaves the GPU is not lost while the host holds it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, NotRequired, TypedDict, cast

MAX_EVICTED_BLOCKS = 65_536
"""Evicted blocks that are remembered."""
LOAD_COST = 0.1
"""Cost of loading a token's keys and values from the host's memory, as a share of computing them: 128 KiB a token of a
model of 8 billion parameters over 50 GB/s, beside 40,000 prompt tokens a second."""


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
    host: bool = False
    """In the host's memory. Such an event may have no `ids`: then it only names blocks that are known."""


class BlockRemoved(NamedTuple):
    """Blocks are no longer in the cache."""

    hashes: Sequence[Hashable]
    host: bool = False
    """From the host's memory."""


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
    with it), as one of the above. Nothing for blocks elsewhere than on the GPU and in the host's memory, and for
    events of unknown kinds."""
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
    medium = (fields.get("medium") or "GPU").upper()
    if medium not in ("GPU", "CPU") or fields.get("group_idx") not in (None, 0):
        return
    host = medium == "CPU"
    if kind == "BlockRemoved":
        yield BlockRemoved(fields["block_hashes"], host)
    if kind != "BlockStored":
        return
    keys = [tuple(key) if key else None for key in fields.get("extra_keys") or ()]
    if not keys and (name := fields.get("lora_name")):
        keys = [(name,)] * len(fields["block_hashes"])
    yield BlockStored(
        fields["block_hashes"], fields["parent_block_hash"], fields["token_ids"], fields["block_size"], keys, host
    )


_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
)  # fmt: skip
_REMOVED = ("block_hashes", "medium")


class CachedBlocks:
    """The blocks of one engine. Pure, and for one thread."""

    def __init__(self, load_cost: float = LOAD_COST) -> None:
        self._load_cost = load_cost
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
        self._host: set[Hashable] = set()
        """Blocks in the host's memory."""
        self._away: set[Hashable] = set()
        """Those of them that are not on the GPU."""
        self._moved: dict[Hashable, None] = {}
        """Blocks that left the GPU or came back since the last news, in order."""

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, events: Iterable[BlockEvent]) -> None:
        """Take in what has changed in an engine's step, in order."""
        batch = list(events)
        if None not in batch:  # vLLM lists the GPU's events of a step before those of the copies that were made first
            batch.sort(key=lambda event: event is None or not event.host)
        for event in batch:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved(hashes, host):
                    for block in hashes:
                        self._removed(block, host)
                case None:
                    self.lose()

    def lose(self) -> None:
        """Forget everything: the cache was emptied, or events were lost."""
        for table in (self._blocks, self._places, self._after, self._cut, self._newest, self._gone, self._held,
                      self._host, self._away, self._moved):  # fmt: skip
            table.clear()
        self._cleared = self._evicts = True

    def count_cached_tokens(self, ids: Sequence[int], model: str = "", salt: str = "", attempt: int = 0) -> int:
        """Return the number of cached tokens at the start of a prompt: whole blocks, and of those that only the host
        holds the share that this saves. `model`: the adapter's name. `attempt`: remember that this prompt passed
        through the blocks."""
        before: Hashable = None
        away, upto, own = 0, 0, (model,) if model else ()
        first = (*own, salt) if salt else own
        for end in range(self.block, len(ids) + 1, self.block) if self.block else ():
            keys = own if upto else first
            before = self._places.get((before, tuple(ids[upto:end]), keys or None))
            if before is None:
                break
            upto = end
            away += before in self._away
            if attempt:
                self._newest[before] = attempt
        return self._worth(upto, away)

    def ended(self, attempt: int, ids: Sequence[int], model: str = "", salt: str = "", other: bool = False) -> None:
        """Record that an attempt with this prompt has ended. `other`: on another engine, which has its blocks."""
        held = self.count_cached_tokens(ids, model, salt, attempt)
        if held if other else self._evicts or held + self.block <= len(ids):
            self._held[attempt] = held

    def news(self) -> tuple[tuple[tuple[int, int], ...], bool] | None:
        """Return the changes since the last call, as the fields of a `CacheUpdate`, or `None` without any."""
        for name in self._moved:
            if (attempt := self._newest.get(name)) is not None and name in self._blocks and name not in self._cut:
                end: Hashable | None = name
                while end is not None:  # the attempt is the newest of all blocks of its prompt behind this one
                    name, end = end, next((b for b in self._after.get(end, ()) if self._newest.get(b) == attempt), None)
                self._held[attempt] = self._worth_up_to(name)
        self._moved.clear()
        if not self._held and not self._cleared:
            return None
        news = tuple(self._held.items()), self._cleared
        self._held, self._cleared = {}, False
        return news

    def _stored(self, event: BlockStored) -> None:
        before, block = event.parent, event.block
        if event.host:
            self._host.update(name for name in event.hashes if name in self._blocks)
            if not event.ids:
                return
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
                self._blocks[name] = _Block(before, place, upto)
                self._places.setdefault(place, name)
                self._after.setdefault(before, {})[name] = None
                if before in self._cut:
                    self._cut.add(name)
                else:
                    self._cut.difference_update(self._behind(name))
                if (attempt := self._gone.pop(name, None)) is not None:
                    self._newest[name] = attempt
                    if name not in self._cut:
                        self._held[attempt] = upto
                if event.host:
                    self._host.add(name)
                    self._away.add(name)
                    self._moved[name] = None
            elif name in self._away and not event.host:
                self._away.discard(name)
                self._moved[name] = None
            before = name

    def _removed(self, name: Hashable, host: bool) -> None:
        if host:
            self._host.discard(name)
            if name not in self._away:
                return  # the GPU holds it, or neither does
        elif name in self._host:
            self._away.add(name)
            self._moved[name], self._evicts = None, True
            return
        block = self._blocks.pop(name, None)
        if block is None:
            return
        self._away.discard(name)
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
            self._held[attempt] = self._worth_up_to(block.before)

    def _worth(self, upto: int, away: int) -> int:
        """Return the tokens that a prompt saves with `upto` cached ones, `away` blocks of them in the host alone."""
        return upto - round(self._load_cost * self.block * away)

    def _worth_up_to(self, name: Hashable) -> int:
        upto, away = self._blocks[name].upto if name is not None else 0, 0
        while self._away and name is not None:
            away += name in self._away
            name = self._blocks[name].before
        return self._worth(upto, away)

    def _behind(self, name: Hashable) -> list[Hashable]:
        """Return the blocks in the cache that stand behind a block, as far as there is no gap."""
        blocks = list(self._after.get(name, ()))
        for block in blocks:
            blocks += self._after.get(block, ())
        return blocks
