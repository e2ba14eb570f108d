"""Follow the events of the prefix cache of vLLM in another process (`--kv-events-config` of a server), over ZMQ.

A message is a topic, a sequence number (8 bytes, big-endian) and a batch in msgpack. After a lost message the cache is
unknown, and all blocks are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from plait.core.errors import ConfigError
from plait.core.interfaces import CacheUpdate
from plait.core.kv_blocks import CachedBlocks, read

EMPTY = CacheUpdate(cleared=True)
"""The first news of a worker that tells of its cache."""


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
MAX_PENDING_PROMPTS = 4096
"""Prompts that may wait for their lookup; older ones are dropped."""
LONG_PROMPT_TOKENS, SILENT_PROMPTS = 256, 16
"""Number of prompts and minimum tokens of each, enough to fill a block, after which missing events are reported."""


class EventReader:
    """Reads messages in order."""

    def __init__(self, blocks: CachedBlocks) -> None:
        """Start before the first message."""
        self._blocks = blocks
        self._decode: Any = _load_decoder()
        self._next = 0
        """Number of the next message."""

    def feed(self, parts: Sequence[bytes]) -> None:
        """Read a message. If others are missing before it, all blocks are forgotten first."""
        try:
            number = int.from_bytes(parts[-2], "big")
            events = [block_event for event in self._decode(parts[-1])[1] for block_event in read(event)]
        except Exception as error:  # the format of another vLLM: the blocks that the message was about are unknown
            log.warning("unreadable prefix cache event: %s: %s", type(error).__name__, error)
            self._blocks.lose()
            return
        if number != self._next:  # a restarted server counts from 0, and its cache is empty
            self._blocks.lose()
        self._next = number + 1
        self._blocks.take(events)


class KvEvents:
    """Follows one server, from `start` to `close`. Prompts are reported only after the first event: otherwise a server
    that publishes elsewhere would seem to cache nothing."""

    def __init__(self, address: str) -> None:
        """Connect with `start`. Raises `ConfigError` if pyzmq or msgspec is not installed."""
        try:
            import zmq.asyncio
        except ImportError:
            raise ConfigError(INSTALL_HINT) from None
        self._zmq: Any = zmq
        self._address = address
        self._blocks = CachedBlocks()
        self._reader = EventReader(self._blocks)
        self._pending: deque[tuple[float, int, Sequence[int], str, str, bool]] = deque(maxlen=MAX_PENDING_PROMPTS)
        self.others: Sequence[KvEvents] = ()
        """Other servers of the model: they are asked for each prompt too, which other processes may have sent there."""
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
            for server in (self, *self.others):
                server._pending.append((due, attempt, ids, model, salt, server is not self))

    async def _listen(self) -> None:
        zmq = self._zmq
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)  # closing must not wait for a server that is down
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._address)
            while True:
                self._reader.feed(await socket.recv_multipart())
                self._has_events = True
        finally:
            socket.close()
            context.destroy(linger=0)

    async def _look_up_prompts(self) -> None:
        """Look up the prompts of responses, and publish what changed."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOKUP_DELAY_S / 3)
            while self._pending and self._pending[0][0] <= loop.time():
                _, attempt, ids, model, salt, other = self._pending.popleft()
                if self._has_events:
                    self._blocks.ended(attempt, ids, model, salt, other)
            if (news := self._blocks.news()) is not None:
                self.mailbox.put(CacheUpdate(*news))


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
