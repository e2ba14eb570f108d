"""One driver over a store, in a process of its own: `python child.py STORE RUNS`. Prints CPU seconds, runs, steps."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from plait import AsyncOrchestrator, Config
from plait.workers.scripted import Reply, Scripted


async def main(store: str, runs: int) -> None:
    """Do a number of runs of four samples, 32 at a time."""
    config = Config(journal=store, pool="drivers")  # pyright: ignore[reportArgumentType]
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")], slots=64)], config=config) as orchestrator:
        await orchestrator.run("first", planner="sample:n=4")
        left = iter(range(runs))

        async def some() -> None:
            for number in left:
                answer = await orchestrator.run(f"question {number}", planner="sample:n=4")
                assert answer.status == "done", answer.failure

        start = time.process_time()
        await asyncio.gather(*(some() for _ in range(32)))
        print(json.dumps(time.process_time() - start))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
