"""Four kinds of run, written once for plait and for a client by hand: votes, threads, tool plans and agents.

A workload is a coroutine over a `Maker`, which generates tokens behind a line and waits for a tool. plait's maker
adds steps to a flow; the other one calls vLLM's `AsyncLLM` and keeps the text of each line itself. Both generate a
set number of tokens, whose texts differ: at temperature 1 no two lines are alike.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
TOOL_SECONDS = (0.3, 1.0)
"""Shortest and longest call of a tool."""


class Maker(Protocol):
    """What a workload generates with."""

    async def generate(self, line: Any | None, text: str, tokens: int) -> Any:
        """Append `text` to a line (`None`: a new one), generate `tokens` behind it, and return the longer line."""
        ...

    async def wait_for_tool(self, seconds: float) -> None:
        """Call a tool that takes so long."""
        ...

    def gather(self, *awaited: Awaitable[T]) -> Awaitable[Sequence[T]]:
        """Await several things in parallel."""
        ...


def text_of(number: int, characters: int) -> str:
    """Return a prompt that no other run shares."""
    draw = random.Random(number)
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz     ", k=characters))


async def vote(maker: Maker, number: int) -> None:
    """16 samples of 256 tokens behind one prompt of 1,024 tokens."""
    prompt = text_of(number, 1_024)
    await maker.gather(*(maker.generate(None, prompt, 256) for _ in range(16)))


async def threads(maker: Maker, number: int) -> None:
    """A parent of 512 + 128 tokens forks 8 threads of 256; the parent then continues with 8 results of 64 tokens."""
    parent = await maker.generate(None, text_of(number, 512), 128)
    await maker.gather(*(maker.generate(parent, f"\nThread {each}: ", 256) for each in range(8)))
    await maker.generate(parent, text_of(number + 1, 8 * 64), 128)


async def tool_plan(maker: Maker, number: int) -> None:
    """A plan of 200 tokens behind 1,500, five calls of tools in parallel, and an answer of 128 tokens."""
    draw = random.Random(number)
    plan = await maker.generate(None, text_of(number, 1_500), 200)
    await maker.gather(*(maker.wait_for_tool(draw.uniform(*TOOL_SECONDS)) for _ in range(5)))
    await maker.generate(plan, text_of(number + 1, 5 * 80), 128)


async def agent(maker: Maker, number: int) -> None:
    """Ten turns behind 1,500 tokens: a call of 48 tokens, a tool, and its result of 200 tokens."""
    draw = random.Random(number)
    line = await maker.generate(None, text_of(number, 1_500), 48)
    for turn in range(9):
        await maker.wait_for_tool(draw.uniform(*TOOL_SECONDS))
        line = await maker.generate(line, text_of(number * 100 + turn, 200), 48)


WORKLOADS: dict[str, tuple[Callable[[Maker, int], Awaitable[None]], int]] = {
    "votes of 16": (vote, 24),
    "threads of width 8": (threads, 32),
    "tool plans": (tool_plan, 64),
    "agents of 10 turns": (agent, 64),
}
"""Each workload and how many of its runs start at once."""


class FlowMaker:
    """Generates by steps of a plait flow; with `read` their text streams."""

    def __init__(self, ctx: Any, read: bool) -> None:
        self.ctx, self.read = ctx, read

    async def generate(self, line: Any | None, text: str, tokens: int) -> Any:
        """See `Maker`."""
        options = {"max_tokens": tokens, "temperature": 1.0, "extra_body": {"ignore_eos": True}, "stream": self.read}
        return await (self.ctx if line is None else line).think(text, **options)

    async def wait_for_tool(self, seconds: float) -> None:
        """See `Maker`."""
        await self.ctx.call("wait", seconds=seconds)

    def gather(self, *awaited: Awaitable[T]) -> Awaitable[Sequence[T]]:
        """See `Maker`."""
        return self.ctx.gather(*awaited)


@dataclass
class HandCounts:
    """What the requests of a pass have counted."""

    generated: int = 0
    prompted: int = 0
    cached: int = 0


NUMBERS = itertools.count()
"""Names of the requests of all passes."""


class HandMaker:
    """Generates one run by vLLM's `AsyncLLM`; with `read` each step's text comes. A line is the ids of its tokens."""

    def __init__(self, engine: Any, tokenizer: Any, read: bool, counts: HandCounts) -> None:
        self.engine, self.tokenizer, self.read, self.counts = engine, tokenizer, read, counts
        self.start = time.perf_counter()
        self.begun: float | None = None
        """Seconds at the run's first output."""

    async def generate(self, line: Any | None, text: str, tokens: int) -> Any:
        """See `Maker`."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        ids = [*(line or ()), *self.tokenizer.encode(text, add_special_tokens=False)]
        kind = RequestOutputKind.DELTA if self.read else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, output_kind=kind, detokenize=self.read)
        written, final = list[int](), None
        async for final in self.engine.generate({"prompt_token_ids": ids}, params, f"hand-{next(NUMBERS)}"):
            if self.begun is None:
                self.begun = time.perf_counter()
            written += final.outputs[0].token_ids
        assert final is not None
        if not self.read:
            self.tokenizer.decode(written)
        counts = self.counts
        counts.generated += len(written)
        counts.prompted += len(ids)
        counts.cached += final.num_cached_tokens or 0
        return [*ids, *written]

    async def wait_for_tool(self, seconds: float) -> None:
        """See `Maker`."""
        await asyncio.sleep(seconds)

    def gather(self, *awaited: Awaitable[T]) -> Awaitable[Sequence[T]]:
        """See `Maker`."""
        return asyncio.gather(*awaited)
