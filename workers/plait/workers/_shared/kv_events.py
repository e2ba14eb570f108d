"""Follow the events of the prefix cache of vLLM in another process (`--kv-events-config` of a server), over ZMQ.

A message is a topic, a sequence number (8 bytes, big-endian) and a batch in msgpack. Lost messages are requested again
if the server has a replay socket; otherwise its cache is unknown from then on, and all blocks are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from plait.core.errors import ConfigError
from plait.core.interfaces import CacheUpdate

# Which blocks an engine's prefix cache holds, by the engine's own events, and what that says of prompts it was sent.
#
# vLLM reports each block that it stores or evicts by a hash of the block and all blocks before it (vLLM:
# `KVEventsConfig`). Here the hashes are a tree: a prompt that has ended is walked down it, and each block remembers the
# newest attempt whose prompt passes through it. After an eviction, that attempt's prompt is held up to the block only.


EMPTY = CacheUpdate(cleared=True)
"""The first news of a worker that tells of its cache."""


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
    keys: Sequence[Any] = ()
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


def read(event: Any) -> Iterator[BlockEvent]:
    """Yield an event of vLLM's, decoded from msgpack (a map with its `type`, or in older releases a list that begins
    with it), as one of the above. Nothing for blocks that are not in the engine's own memory, and for events of unknown
    kinds."""
    fields: dict[str, Any]
    if isinstance(event, list):
        kind, *rest = event or [""]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields = dict(zip(names, rest, strict=False))
    else:
        kind, fields = event.get("type", ""), event
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
    if not keys and fields.get("lora_name"):
        keys = [(fields["lora_name"],)] * len(fields["block_hashes"])
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

    def ended(self, attempt: int, ids: Sequence[int], model: str = "", salt: str = "") -> None:
        """An attempt with this prompt is over."""
        held = self.count_cached_tokens(ids, model, salt, attempt)
        if self._evicts or held + self.block <= len(ids):
            self._held[attempt] = held

    def news(self) -> CacheUpdate | None:
        """Return the changes since the last call, or `None` without any."""
        if not self._held and not self._cleared:
            return None
        news = CacheUpdate(tuple(self._held.items()), self._cleared)
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


class Mailbox:
    """News on its way to who reads it, on the event loop. What is not read yet is joined to one piece."""

    def __init__(self, first: CacheUpdate | None = None) -> None:
        self._news = first
        self._there = asyncio.Event()
        if first is not None:
            self._there.set()
        self._closed = False

    def put(self, news: CacheUpdate) -> None:
        """Add news."""
        before = self._news
        if before is not None and not news.cleared:
            news = CacheUpdate(tuple({**dict(before.held), **dict(news.held)}.items()), before.cleared)
        self._news = news
        self._there.set()

    def close(self) -> None:
        """Say that nothing more will come."""
        self._closed = True
        self._there.set()

    async def __aiter__(self) -> AsyncIterator[CacheUpdate]:
        while True:
            await self._there.wait()
            self._there.clear()
            news, self._news = self._news, None
            if news is not None:
                yield news
            if self._closed:
                return


log = logging.getLogger("plait.kv_events")

LOOKUP_DELAY_S = 0.3
"""From a response to the lookup of its prompt: the events of its blocks come over another connection."""
REPLAY_TIMEOUT_S = 2.0
MAX_PENDING_PROMPTS = 4096
"""Prompts that may wait for their lookup; older ones are dropped."""
LONG_PROMPT_TOKENS, SILENT_PROMPTS = 256, 16
"""Number of prompts and minimum tokens of each, enough to fill a block, after which missing events are reported."""


class EventReader:
    """Reads messages in order. Pure: it returns which ones have to be requested again."""

    def __init__(self, blocks: CachedBlocks) -> None:
        """Start before the first message."""
        self._blocks = blocks
        self._decode: Any = _load_decoder()
        self._next, self._latest = 0, -math.inf
        """Number of the next message, and timestamp of the last one."""

    def feed(self, parts: Sequence[bytes], *, can_replay: bool = False) -> int | None:
        """Read a message. Return `None`, or the number of the first missing message before it, if the server can
        replay that; the message must be fed again then. Otherwise all blocks are forgotten."""
        try:
            number = int.from_bytes(parts[-2], "big")
            timestamp, raw = self._decode(parts[-1])[:2]
            events = [block_event for event in raw for block_event in read(event)]
            timestamp = float(timestamp)
        except Exception as error:  # the format of another vLLM: the blocks that the message was about are unknown
            log.warning("unreadable prefix cache event: %s: %s", type(error).__name__, error)
            self._blocks.lose()
            return None
        if number < self._next:
            if timestamp <= self._latest:
                return None  # a replayed message that had arrived after all
            self._blocks.lose()  # a restarted server counts from 0, and its cache is empty
            self._next = 0
        if number > self._next:
            if can_replay:
                return self._next
            self._blocks.lose()
        self._next, self._latest = number + 1, timestamp
        self._blocks.take(events)
        return None


class KvEvents:
    """Follows one server, from `start` to `close`. Prompts are reported only after the first event: otherwise a server
    that publishes elsewhere would seem to cache nothing."""

    def __init__(self, address: str, replay: str | None) -> None:
        """Connect with `start`. Raises `ConfigError` if pyzmq or msgspec is not installed."""
        try:
            import zmq.asyncio
        except ImportError:
            raise ConfigError(INSTALL_HINT) from None
        self._zmq: Any = zmq
        self._address, self._replay = address, replay
        self._blocks = CachedBlocks()
        self._reader = EventReader(self._blocks)
        self._pending: deque[tuple[float, int, Sequence[int], str, str]] = deque(maxlen=MAX_PENDING_PROMPTS)
        self.mailbox = Mailbox(EMPTY)
        self._has_events, self._silent_prompts = False, 0
        """Whether any message arrived, and how many long prompts were answered without one."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Subscribe to the events."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._look_up_prompts())]

    async def close(self) -> None:
        """Unsubscribe."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.mailbox.close()

    def add_prompt(self, attempt: int, ids: Sequence[int], model: str, salt: str) -> None:
        """Look up the prompt of a finished or cancelled response soon."""
        if not self._has_events and len(ids) >= LONG_PROMPT_TOKENS:
            self._silent_prompts += 1
            if self._silent_prompts == SILENT_PROMPTS:
                log.warning(SILENCE_WARNING, SILENT_PROMPTS, self._address)
        if ids:
            due = asyncio.get_running_loop().time() + LOOKUP_DELAY_S
            self._pending.append((due, attempt, ids, model, salt))

    async def _listen(self) -> None:
        zmq = self._zmq
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)  # closing must not wait for a server that is down
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._address)
            while True:
                parts = await socket.recv_multipart()
                self._has_events = True
                missing = self._reader.feed(parts, can_replay=self._replay is not None)
                if missing is not None:
                    for message in await self._request_replay(context, zmq, missing):
                        self._reader.feed(message)
                    self._reader.feed(parts)
        finally:
            socket.close()
            context.destroy(linger=0)

    async def _request_replay(self, context: Any, zmq: Any, first: int) -> list[list[bytes]]:
        """Return the messages from a number on, as far as the server still has them."""
        # A DEALER, since vLLM's ROUTER sends many replies to one request, which a REQ socket would refuse.
        socket = context.socket(zmq.DEALER)
        messages: list[list[bytes]] = []
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._replay)
            await socket.send_multipart((b"", first.to_bytes(8, "big")))
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                while True:
                    parts = await socket.recv_multipart()
                    # vLLM ends a replay with the number -1 and an empty payload.
                    if len(parts) < 2 or parts[-2] == b"\xff" * 8 or not parts[-1]:
                        return messages
                    messages.append(parts)
        except TimeoutError:
            return messages
        finally:
            socket.close()

    async def _look_up_prompts(self) -> None:
        """Look up the prompts of responses, and publish what changed."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOKUP_DELAY_S / 3)
            while self._pending and self._pending[0][0] <= loop.time():
                _, attempt, ids, model, salt = self._pending.popleft()
                if self._has_events:
                    self._blocks.ended(attempt, ids, model, salt)
            if (news := self._blocks.news()) is not None:
                self.mailbox.put(news)


SILENCE_WARNING = (
    "%d prompts were answered and no prefix cache events came from %s: its cache is estimated instead. Its "
    "--kv-events-config needs an `endpoint` that it binds itself, with a star: tcp://*:5557"
)
INSTALL_HINT = "kv_events needs pyzmq and msgspec: pip install 'plait[kv-events]'"


def _load_decoder() -> Any:
    try:
        import msgspec
    except ImportError:
        raise ConfigError(INSTALL_HINT) from None
    return msgspec.msgpack.Decoder().decode
