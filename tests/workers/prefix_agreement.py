"""Sixty prompts behind a few headers, and how the index of prefixes, asked before each, agreed with what a worker then
found in its cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from plait import AsyncOrchestrator, ModelCall, Plan, Sampling, Step

BLOCK, HEADER = 32, 256


async def agreement(
    orchestrator: AsyncOrchestrator,
    worker: str,
    settle: float,
    foreign: Callable[[ModelCall], Awaitable[object]] | None = None,
) -> dict[str, Any]:
    """Return `hits`, `evictions`, and `wrong`, the pairs (predicted, found) more than a block apart. A header that the
    orchestrator sends for the first time is left out: what others had cached of it the index cannot know.

    Args:
        orchestrator: with the policy `affinity`, so that it keeps the index.
        worker: its only worker's name.
        settle: seconds for the news of an answer to arrive.
        foreign: runs every third prompt past the orchestrator.
    """
    rng = random.Random(3)
    headers = [" ".join(str(rng.randrange(128)) for _ in range(HEADER)) for _ in range(12)]
    wrong: list[tuple[int, int]] = []
    hits = evictions = 0
    known: set[int] = set()
    assert orchestrator._driver is not None
    machine = orchestrator._driver.machine
    for number in range(60):
        header = min(11, int(rng.expovariate(0.25)))
        text = f"{headers[header]} {number} <go>"
        think = ModelCall(prompt=text, sampling=Sampling(max_tokens=8, temperature=1.0, seed=number))
        if foreign is not None and number % 3 == 2:
            await foreign(think)
            await asyncio.sleep(settle)
            continue
        index = machine._records.prefixes
        content = text.encode()
        share = max((index.held_bytes(root, content).get(worker, 0) for root in index._roots), default=0) / len(content)
        answer = await orchestrator.run("x", plan=Plan(steps=(Step(name="a", op=think),), output="a"))
        assert answer.status == "done", answer.failure
        predicted = int(share * answer.usage.prompt) // BLOCK * BLOCK
        hits += answer.usage.cached > 0
        evictions += 0 < answer.usage.cached < HEADER or (number > 20 and not answer.usage.cached)
        if header in known and abs(predicted - answer.usage.cached) > BLOCK:
            wrong.append((predicted, answer.usage.cached))
        known.add(header)
        await asyncio.sleep(settle)
    return {"hits": hits, "evictions": evictions, "wrong": wrong}
