"""An engine with a small cache, whose events the index of prefixes follows: prints how the two agreed, as JSON. A
process of its own, for a process has one engine."""

from __future__ import annotations

import asyncio
import json
import sys

from prefix_agreement import agreement

from plait import AsyncOrchestrator, Config
from plait.core.ops import Plugin
from plait.workers.engine import Engine


async def main() -> None:
    engine = Engine(
        Config(journal="off").model, slots=4, kv_cache_memory_bytes=5 << 20, max_model_len=512, kv_events=True
    )
    config = Config(journal="off", policies=(Plugin(name="affinity"),))
    async with AsyncOrchestrator(workers=[engine], config=config) as orchestrator:
        assert engine._core is not None and engine._core.cached is not None
        found = await agreement(orchestrator, engine.name, 0.15)  # the driver hears of it a few times a second
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
