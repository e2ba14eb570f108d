"""What a no-op step costs through the public SDK, beside the same graph in plain asyncio.

1→1000→1: one step, a thousand that need it, one that joins them. Chain: 200 steps, each needing the one before. Without
a journal, and, where the row says so, with the one that runs have by default.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from plait import AsyncOrchestrator, Call, Config, Join, Plan, Step, tool

from .measure import Contender, Rounds, Row, interleave

WIDTH, DEPTH, ROUNDS = 1000, 200, 15


@tool
async def nothing() -> None:
    """Do nothing."""


@tool
def nothing_sync() -> None:
    """Do nothing, on a thread."""


def fan(name: str) -> Plan:
    """Return the plan 1→1000→1 over a tool."""
    middle = [f"m{i}" for i in range(WIDTH)]
    first = Step(name="first", op=Call(tool=name))
    steps = [Step(name=each, op=Call(tool=name), needs=("first",)) for each in middle]
    return Plan(steps=(first, *steps, Step(name="last", op=Join(), needs=tuple(middle))), output="last")


def chain(name: str) -> Plan:
    """Return the chain of 200 over a tool."""
    steps = [Step(name=f"c{i}", op=Call(tool=name), needs=(f"c{i - 1}",) if i else ()) for i in range(DEPTH)]
    return Plan(steps=tuple(steps), output=steps[-1].name)


async def asyncio_fan() -> float:
    """The fan in plain asyncio, a task a step; microseconds a step."""
    start = time.perf_counter()
    await asyncio.create_task(nothing.fn())
    await asyncio.gather(*(asyncio.create_task(nothing.fn()) for _ in range(WIDTH)))
    await asyncio.create_task(nothing.fn())
    return (time.perf_counter() - start) / (WIDTH + 2) * 1e6


async def asyncio_chain() -> float:
    """The chain in plain asyncio, a task a step; microseconds a step."""
    start = time.perf_counter()
    for _ in range(DEPTH):
        await asyncio.create_task(nothing.fn())
    return (time.perf_counter() - start) / DEPTH * 1e6


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    tools = [nothing, nothing_sync]
    with tempfile.TemporaryDirectory() as folder:
        off, on = Config(journal="off"), Config(journal=Path(folder) / "journal")
        async with (
            AsyncOrchestrator(workers=[], tools=tools, config=off) as plain,
            AsyncOrchestrator(workers=[], tools=tools, config=on) as journalled,
        ):
            return await _measured(plain, journalled)


async def _measured(plain: AsyncOrchestrator, journalled: AsyncOrchestrator) -> list[Row]:
    async def through(plan: Plan, orchestrator: AsyncOrchestrator = plain) -> float:
        start = time.perf_counter()
        answer = await orchestrator.run(plan=plan)
        seconds = time.perf_counter() - start
        assert answer.status == "done", answer
        return seconds / len(plan.steps) * 1e6

    plans = {"fan": fan("nothing"), "chain": chain("nothing"), "sync fan": fan("nothing_sync")}
    contenders: dict[str, Contender] = {name: lambda plan=plan: through(plan) for name, plan in plans.items()}
    contenders["written fan"] = lambda: through(plans["fan"], journalled)
    contenders["written chain"] = lambda: through(plans["chain"], journalled)
    figures = await interleave(contenders | {"asyncio fan": asyncio_fan, "asyncio chain": asyncio_chain}, ROUNDS)
    return [
        _row(figures, "1→1000→1, async tool", "fan", "asyncio fan", "≤ 50 µs"),
        _row(figures, "chain of 200, async tool", "chain", "asyncio chain", "≤ 60 µs"),
        _row(figures, "1→1000→1, sync tool (a thread hop)", "sync fan", "asyncio fan", ""),
        _row(figures, "1→1000→1, async tool, journalled", "written fan", "asyncio fan", ""),
        _row(figures, "chain of 200, async tool, journalled", "written chain", "asyncio chain", ""),
    ]


def _row(figures: Rounds, what: str, ours: str, baseline: str, goal: str) -> Row:
    spread, base = figures.spread(ours), figures.spread(baseline)
    return Row(what, f"{spread} µs/step", f"asyncio {base} µs/step", str(figures.ratio(ours, baseline)), goal)
