"""Stub engines in a process of their own: `python engines.py COUNT SECONDS`. Prints their addresses and those of their
events as a line of JSON; at `GET /stats` each says the prompt tokens of all engines: computed, and unique ones.

An engine has slots, reads prompts one after another, caches blocks in the order of last use, and publishes what it
stores and evicts in vLLM's format. What it writes takes time and is always the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.workers.http.fake_server import FakeServer

BLOCK, BLOCKS, SLOTS, PREFILL = 16, 1_500, 64, 4_000.0
WORDS: dict[str, int] = {}
Key = tuple[int, ...]


@dataclass(eq=False)
class StubEngine(FakeServer):
    """One engine."""

    seconds: float = 40.0
    """Of an answer, without its prompt."""
    cache: OrderedDict[Key, int] = field(default_factory=OrderedDict[Key, int])
    """Hashes of cached blocks, by all tokens up to their ends."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    known: set[Key] = field(default_factory=set[Key])
    """Blocks that any engine has ever computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.publisher = zmq.asyncio.Context.instance().socket(zmq.PUB)
        self.events = f"tcp://127.0.0.1:{self.publisher.bind_to_random_port('tcp://127.0.0.1')}"
        self.free, self.reading, self.sent = asyncio.Semaphore(SLOTS), asyncio.Lock(), 0

    def encode(self, text: str) -> list[int]:
        return [WORDS.setdefault(word, len(WORDS)) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        words = list(WORDS)
        return " ".join(words[each] for each in ids)

    def _tokens(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        return self.counts if path == "/stats" else super()._tokens(path, body)

    async def _generate(self, writer: asyncio.StreamWriter, body: dict[str, Any], *rest: Any) -> None:
        prompt = body["prompt"] if "prompt" in body else " ".join(str(each["content"]) for each in body["messages"])
        ids = prompt if isinstance(prompt, list) else self.encode(prompt)
        if len(ids) >= BLOCK:  # a driver tries a server out with a shorter prompt
            async with self.free:
                async with self.reading:
                    self.cached = await self._read(ids)
                    await asyncio.sleep((len(ids) - self.cached) / PREFILL)
                await asyncio.sleep(self.seconds)
        await super()._generate(writer, body, *rest)

    async def _read(self, ids: list[int]) -> int:
        """Return the cached tokens of a prompt, and cache it."""
        keys = [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]
        hits = next((place for place, key in enumerate(keys) if key not in self.cache), len(keys))
        stored = [[hash(key) for key in keys[hits:]], hash(keys[hits - 1]) if hits else None]
        fresh = [key for key in keys if key not in self.known]
        self.known.update(fresh)
        self.counts["computed"] += len(ids) - hits * BLOCK
        self.counts["unique"] += len(fresh) * BLOCK + len(ids) % BLOCK
        for key in reversed(keys):  # the end of a prompt goes before its beginning
            self.cache[key] = hash(key)
            self.cache.move_to_end(key)
        gone = [self.cache.popitem(last=False)[1] for _ in range(len(self.cache) - BLOCKS)]
        events: list[dict[str, Any]] = [{"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"}] if gone else []
        if hits < len(keys):
            events.append(
                {"type": "BlockStored", "block_hashes": stored[0], "parent_block_hash": stored[1],
                 "token_ids": ids[hits * BLOCK : len(keys) * BLOCK], "block_size": BLOCK, "medium": "GPU"}
            )  # fmt: skip
        if events:
            batch = msgspec.msgpack.encode([0.0, events])
            await self.publisher.send_multipart([b"", self.sent.to_bytes(8, "big"), batch])
            self.sent += 1
        return hits * BLOCK


async def main(count: int, seconds: float) -> None:
    """Serve until the process is ended."""
    counts, known = {"computed": 0, "unique": 0}, set[Key]()
    engines = [StubEngine(seconds=seconds, counts=counts, known=known, owner="vllm") for _ in range(count)]
    for engine in engines:
        await engine.open()
    print(json.dumps({"urls": [engine.url for engine in engines], "events": [engine.events for engine in engines]}))
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
