"""An engine with a small cache, twelve headers of 256 tokens and sixty prompts: prints how the index of prefixes, asked
before each prompt, agreed with what the engine then found. A process of its own, for a process has one engine."""

from __future__ import annotations

import asyncio
import json
import random
import sys

from plait import AsyncOrchestrator, Config, Plan, Sampling, Step, Think
from plait.core.ops import Plugin
from plait.workers.engine import Engine

BLOCK = 32


async def main() -> None:
    """Prints a JSON object: `hits`, `evictions`, and `wrong`, the pairs (predicted, found) a block or more apart."""
    rng = random.Random(3)
    headers = [" ".join(str(rng.randrange(128)) for _ in range(256)) for _ in range(12)]
    engine = Engine(
        Config(journal="off").model, slots=4, kv_cache_memory_bytes=5 << 20, max_model_len=512, kv_events=True
    )
    config = Config(journal="off", policies=(Plugin(name="affinity"),))
    wrong: list[tuple[int, int]] = []
    hits = evictions = 0
    async with AsyncOrchestrator(workers=[engine], config=config) as orchestrator:
        assert orchestrator._driver is not None and engine._core is not None and engine._core.cached is not None
        machine = orchestrator._driver.machine
        for number in range(60):
            text = f"{headers[min(11, int(rng.expovariate(0.25)))]} {number} <go>"
            think = Think(prompt=text, sampling=Sampling(max_tokens=8, temperature=1.0, seed=number))
            index = machine._records.prefixes
            content = text.encode()
            share = max((index.held(root, content).get("engine", 0) for root in index._roots), default=0) / len(content)
            answer = await orchestrator.run("x", plan=Plan(steps=(Step(name="a", op=think),), output="a"))
            predicted = int(share * answer.usage.prompt) // BLOCK * BLOCK
            hits += answer.usage.cached > 0
            evictions += 0 < answer.usage.cached < 256 or (number > 20 and not answer.usage.cached)
            if abs(predicted - answer.usage.cached) > BLOCK:
                wrong.append((predicted, answer.usage.cached))
            await asyncio.sleep(0.15)  # the driver hears of it a few times a second
    sys.stdout.write(json.dumps({"hits": hits, "evictions": evictions, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
