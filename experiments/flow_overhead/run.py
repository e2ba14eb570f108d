"""What does a flow cost beside the same plan given whole?

What a flow costs beside the same plan given whole: a chain of 200 model calls, a fan of 1,000.

    python -m experiments flow_overhead

CPU seconds of the process a run, the two ways in turn; the median of the ratios of several rounds, and the ratio of the
least times, which a busy machine disturbs less; a scripted worker, no journal.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step
from plait.core.flow import Answerable, Context
from plait.workers.scripted import Reply, Scripted

CHAIN, FAN, ROUNDS = 200, 1_000, 25


def chain() -> Plan:
    """Return a chain of calls; each continues the one before."""
    steps = [Step(name="c0", op=ModelCall(prompt="go", chat=True, sampling=Sampling(max_tokens=8)))]
    for i in range(1, CHAIN):
        steps.append(Step(name=f"c{i}", op=ModelCall(prompt="on", after=f"c{i - 1}", sampling=Sampling(max_tokens=8))))
    return Plan(steps=tuple(steps), output=f"c{CHAIN - 1}")


def fan() -> Plan:
    """Return calls side by side, and their join."""
    steps = [
        Step(name=f"c{i}", op=ModelCall(prompt="go", chat=True, sampling=Sampling(max_tokens=8))) for i in range(FAN)
    ]
    end = Step(name="end", op=Join(), needs=tuple(step.name for step in steps))
    return Plan(steps=(*steps, end), output="end")


async def chain_flow(ctx: Context, question: str) -> Answerable:
    """Do what `chain` does."""
    line = await ctx.think("go", max_tokens=8)
    for _ in range(1, CHAIN):
        line = await line.think("on", max_tokens=8)
    return line


async def fan_flow(ctx: Context, question: str) -> Answerable:
    """Do what `fan` does."""
    return await ctx.join(await ctx.gather(*(ctx.think("go", max_tokens=8) for _ in range(FAN))))


async def seconds(orchestrator: AsyncOrchestrator, options: Callable[[], dict[str, Any]]) -> float:
    """Return the CPU seconds of one run, with the making of its plan."""
    gc.collect()
    began = time.process_time()
    answer = await orchestrator.run("go", **options())
    assert answer.status == "done", answer.failure
    return time.process_time() - began


async def measure() -> None:
    """Measure and print."""
    worker = Scripted([Reply(text="fine")], slots=64)
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        for name, whole, flow in (("chain of 200", chain, chain_flow), ("fan of 1,000", fan, fan_flow)):
            ratios: list[float] = []
            times: list[float] = []
            plain: list[float] = []
            for _ in range(ROUNDS):
                given = await seconds(orchestrator, lambda whole=whole: {"plan": whole()})
                made = await seconds(orchestrator, lambda flow=flow: {"planner": flow})
                ratios.append(made / given)
                times.append(made)
                plain.append(given)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(
                f"{name}: {statistics.median(ratios):.2f} times the plan given whole ({spread}); least of each "
                f"{min(times) / min(plain):.2f}: {min(times):.4f} s against {min(plain):.4f} s"
            )


def main() -> None:
    """Measure and print."""
    asyncio.run(measure())
