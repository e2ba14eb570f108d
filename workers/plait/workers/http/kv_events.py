"""The news of a vLLM server's prefix cache: `vllm serve --kv-events-config`, over ZMQ.

A message is a topic, a sequence number (8 bytes, big-endian) and a batch in msgpack. Of lost messages the server is
asked again, where it has a socket for that; else what it holds is not known any more, and all is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from plait.core.errors import ConfigError
from plait.core.result import Result

from .._shared.cached_blocks import EMPTY, CachedBlocks, Mailbox, read

log = logging.getLogger("plait.http")

LATER = 0.3
"""Seconds after an answer until its prompt is looked up: the news of its blocks comes by another way."""
PATIENCE = 2.0
"""Seconds that a server has to repeat what was lost."""
ENDED = 4096
"""Prompts that may wait to be looked up."""
LONG, SILENT = 256, 16
"""After so many prompts of at least so many tokens, of which each should have filled a block, silence is no chance."""


class Batches:
    """Takes messages in order. Pure: it is given them, and says what has to be asked for again."""

    def __init__(self, blocks: CachedBlocks) -> None:
        self._blocks = blocks
        self._decode: Any = _decoder()
        self._next, self._latest = 0, -math.inf
        """Number of the message that comes next, and when the last one was made."""

    def take(self, parts: Sequence[bytes], *, again: bool = False) -> int | None:
        """Take a message. Return `None`, or the number of the first that is missing before it, if the server can be
        asked for that (`again`); the message is to be given again then. Otherwise what was known is forgotten."""
        try:
            number = int.from_bytes(parts[-2], "big")
            made, raw = self._decode(parts[-1])[:2]
            events = [block_event for event in raw for block_event in read(event)]
            made = float(made)
        except Exception as error:  # whatever stands there, the blocks that it was about are not known any more
            log.warning("news of a prefix cache that cannot be read: %s: %s", type(error).__name__, error)
            self._blocks.lose()
            return None
        if number < self._next:
            if made <= self._latest:
                return None  # it came twice
            self._blocks.lose()  # a server that was started anew
            self._next = 0
        if number > self._next:
            if again:
                return self._next
            self._blocks.lose()
        self._next, self._latest = number + 1, made
        self._blocks.take(events)
        return None


class KvEvents:
    """Follows one server, from `start` to `close`. Until it is heard, nothing is said of prompts: a server that
    publishes elsewhere would be taken to hold none."""

    def __init__(self, address: str, replay: str | None) -> None:
        """Raises `ConfigError` where pyzmq or msgspec is not installed."""
        try:
            import zmq.asyncio
        except ImportError:
            raise ConfigError(MISSING) from None
        self._zmq: Any = zmq
        self._address, self._replay = address, replay
        self._blocks = CachedBlocks()
        self._batches = Batches(self._blocks)
        self._ended: deque[tuple[float, int, Result, str, str]] = deque(maxlen=ENDED)
        self.mailbox = Mailbox(EMPTY)
        self._heard, self._unheard = False, 0
        """Whether a message has come, and how many long prompts were answered without one."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._look())]

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.mailbox.close()

    def ended(self, attempt: int, result: Result, model: str, salt: str) -> None:
        """An answer has come, or was given up."""
        if not self._heard and len(result.prompt_ids) >= LONG:
            self._unheard += 1
            if self._unheard == SILENT:
                log.warning(UNHEARD, SILENT, self._address)
        if result.prompt_ids:
            due = asyncio.get_running_loop().time() + LATER
            self._ended.append((due, attempt, result, model, salt))

    async def _listen(self) -> None:
        zmq = self._zmq
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._address)
            while True:
                parts = await socket.recv_multipart()
                self._heard = True
                missing = self._batches.take(parts, again=self._replay is not None)
                if missing is not None:
                    for batch in await self._again(context, zmq, missing):
                        self._batches.take(batch)
                    self._batches.take(parts)
        finally:
            socket.close()
            context.destroy(linger=0)

    async def _again(self, context: Any, zmq: Any, first: int) -> list[list[bytes]]:
        """Ask for messages from a number on; return those that the server still has."""
        socket = context.socket(zmq.DEALER)
        batches: list[list[bytes]] = []
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._replay)
            await socket.send_multipart((b"", first.to_bytes(8, "big")))
            async with asyncio.timeout(PATIENCE):
                while True:
                    parts = await socket.recv_multipart()
                    if len(parts) < 2 or parts[-2] == b"\xff" * 8 or not parts[-1]:
                        return batches
                    batches.append(parts)
        except TimeoutError:
            return batches
        finally:
            socket.close()

    async def _look(self) -> None:
        """Look up the prompts of answers, and tell what is new."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LATER / 3)
            while self._ended and self._ended[0][0] <= loop.time():
                _, attempt, result, model, salt = self._ended.popleft()
                if self._heard:
                    self._blocks.ended(attempt, result.prompt_ids, model, salt)
            if (news := self._blocks.news()) is not None:
                self.mailbox.put(news)


UNHEARD = (
    "%d prompts were answered and no news of the server's prefix cache came from %s: what it holds is guessed. Its "
    "--kv-events-config needs an `endpoint` that it opens itself, with a star: tcp://*:5557"
)
MISSING = "kv_events needs pyzmq and msgspec: pip install 'plait[kv-events]'"


def _decoder() -> Any:
    try:
        import msgspec
    except ImportError:
        raise ConfigError(MISSING) from None
    return msgspec.msgpack.Decoder().decode
