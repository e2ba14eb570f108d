"""How long do submissions and large plans keep the event loop from other work?

A task that does nothing but take its turn notes how much CPU time the whole process used between two turns: on a quiet
machine that is the time that others waited. CPU time rather than the clock's, so that a loaded machine says the same.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from plait import AsyncOrchestrator, Config, Join, Plan, Step, ToolCall, tool

GOAL = 0.05


@tool
async def nothing() -> None:
    """Do nothing."""


def fan(size: int) -> Plan:
    """Return 1→size→1."""
    middle = [f"m{i}" for i in range(size)]
    first = Step(name="first", op=ToolCall(tool="nothing"))
    steps = [Step(name=each, op=ToolCall(tool="nothing"), needs=("first",)) for each in middle]
    return Plan(steps=(first, *steps, Step(name="last", op=Join(), needs=tuple(middle))), output="last")


async def stalls(orchestrator: AsyncOrchestrator, submits: int, plan: Plan) -> list[float]:
    """Submit a plan a number of times at once; return the longest stalls until the last answer, in seconds of CPU."""
    turns: list[float] = []

    async def probe() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            turns.append(now - last)
            last = now

    gc.collect()
    task = asyncio.create_task(probe())
    await asyncio.sleep(0.05)
    turns.clear()
    handles = await asyncio.gather(*(orchestrator.submit(plan=plan) for _ in range(submits)))
    answers = await asyncio.gather(*handles)
    task.cancel()
    assert all(answer.status == "done" for answer in answers)
    return sorted(turns, reverse=True)[:3]


async def measure(submits: int, sizes: list[int], journal: bool) -> None:
    """Print the longest stalls of many submissions and of large plans."""
    with TemporaryDirectory() as folder:
        config = Config(journal=Path(folder) / "journal" if journal else "off")
        async with AsyncOrchestrator(workers=[], tools=[nothing], config=config) as orchestrator:
            await orchestrator.run(plan=fan(10))
            for what, count, size in [(f"{submits:,} submits", submits, 1), *((f"{n:,} steps", 1, n) for n in sizes)]:
                found = await stalls(orchestrator, count, fan(size))
                said = ", ".join(f"{each * 1000:.0f}" for each in found)
                sys.stdout.write(f"{what}: {said} ms of CPU (goal: none above {GOAL * 1000:.0f})\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments stalls", description=__doc__)
    parser.add_argument("--submits", type=int, default=3000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000], metavar="STEPS")
    parser.add_argument("--journal", action="store_true", help="with the default journal")
    options = parser.parse_args()
    asyncio.run(measure(options.submits, options.sizes, options.journal))
