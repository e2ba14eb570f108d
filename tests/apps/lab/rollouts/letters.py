"""A model worker of the tests that tells token ids and log-probabilities, takes new weights, and goes on from ids.

A token is a byte of text; 256 ends an output. It writes 6 to 9 letters, then ` answer: 4` or ` answer: 5`, all of it
settled by the seed, the prompt and the place. Version v of the weights has its own two letters (`ab`, `cd`, …), so a
text shows which weights drew each of them; a letter has the probability 1/2, the rest is certain.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
from collections.abc import AsyncIterator
from typing import Any

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Kind, ModelCall, Text, Tokens
from plait.core.result import Failure, Result, TokenDraws, Usage

END = 256


class Letters(Worker):
    """See above. `pause`: seconds a token; `LETTERS_PAUSE` by default. `LETTERS_LOST`: the share of requests that it
    loses in their middle, as an engine that dies does."""

    serves: tuple[Kind, ...] = ("think",)

    def __init__(self, *, slots: int = 64, pause: float | None = None, name: str = "letters") -> None:
        self.name, self.slots = name, slots
        self.pause = float(os.environ.get("LETTERS_PAUSE", "0")) if pause is None else pause
        self.lost = float(os.environ.get("LETTERS_LOST", "0"))
        self.version = 0
        self.processed = True
        self.live: dict[int, asyncio.Event] = {}
        self.loaded: list[Any] = []
        self._closed = asyncio.Event()

    async def start(self) -> None:
        self._closed = asyncio.Event()

    async def reload(self, weights: Any) -> None:
        assert not self.live, "weights were exchanged under a request"
        self.loaded.append(weights)
        self.version += 1

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        prompt = [
            byte for part in think.parts for byte in (part.text.encode() if isinstance(part, Text) else _ids(part))
        ]
        ids, logprobs = list(job.generated), list[float]()
        stop = self.live[job.attempt] = asyncio.Event()
        finish = "stop"
        try:
            while (token := self._next(prompt, ids, think.sampling.seed or 0)) != END:
                if stop.is_set():
                    finish = "cancelled"
                    break
                if len(ids) >= think.sampling.max_tokens:
                    finish = "length"
                    break
                ids.append(token)
                logprobs.append(-math.log(2) if chr(token).islower() and len(ids) <= self._letters(prompt) else 0.0)
                await asyncio.sleep(self.pause)
                if len(ids) == 5 and random.random() < self.lost:
                    yield Failure(kind="WorkerLost", message="the engine died", lost=True)
                    return
        finally:
            del self.live[job.attempt]
        drawn = None
        if think.sampling.token_logprobs:
            end = (END, 0.0) if finish == "stop" else None
            # Its letters are equally likely at every temperature; where none is asked for it says 1.
            known = None if think.sampling.temperature is not None else 1.0
            drawn = TokenDraws(logprobs=tuple(logprobs), end=end, processed=self.processed, temperature=known)
        usage = Usage(prompt=len(prompt), completion=len(logprobs))
        text = bytes(ids).decode()
        yield Result(
            value=text, prompt_ids=tuple(prompt), token_ids=tuple(ids), usage=usage, finish=finish, drawn=drawn
        )

    async def cancel(self, attempt: int) -> None:
        if attempt in self.live:
            self.live[attempt].set()

    async def health(self) -> AsyncIterator[bool]:
        if not self._closed.is_set():
            yield True
            await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()

    def _letters(self, prompt: list[int]) -> int:
        return 6 + _hash(prompt) % 4

    def _next(self, prompt: list[int], ids: list[int], seed: int) -> int:
        letters = self._letters(prompt)
        if len(ids) < letters:
            return ord("abcdefghijklmnop"[2 * self.version + _hash(seed, prompt, len(ids)) % 2])
        rest = f" answer: {4 + (_hash(seed, prompt) % 3 == 0)}".encode()
        place = len(ids) - letters
        return rest[place] if place < len(rest) else END


def _ids(part: object) -> tuple[int, ...]:
    assert isinstance(part, Tokens)
    return part.ids


def _hash(*what: object) -> int:
    return hashlib.blake2b(repr(what).encode(), digest_size=4).digest()[0]
