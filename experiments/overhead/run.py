"""What does a step that does nothing cost through the SDK, beside plain asyncio and other libraries?

What a no-op step costs through the public SDK, beside the same graph in plain asyncio.

1→1000→1: one step, a thousand that need it, one that joins them. Chain: 200 steps, each needing the one before. Without
a journal, and, where the row's label states it, with the one that runs have by default.

Beside another checkout of this repository, in one interleaved run: `python -m experiments overhead --against FOLDER`;
beside burr and pydantic-graph in an environment of their own: `--libraries PYTHON`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from plait import AsyncOrchestrator, Config, Join, Plan, Step, ToolCall, tool

from .._tools.command import given_of, page_options
from .._tools.measure import Contender, Rounds, Row, interleave
from .._tools.rows import show
from . import libraries
from .step import DEPTH, HERE, PLANS, WIDTH, measured_in

ROUNDS = 15


@tool
async def nothing() -> None:
    """Do nothing."""


@tool
def nothing_sync() -> None:
    """Do nothing, on a thread."""


def fan(name: str) -> Plan:
    """Return the plan 1→1000→1 over a tool."""
    middle = [f"m{i}" for i in range(WIDTH)]
    first = Step(name="first", op=ToolCall(tool=name))
    steps = [Step(name=each, op=ToolCall(tool=name), needs=("first",)) for each in middle]
    return Plan(steps=(first, *steps, Step(name="last", op=Join(), needs=tuple(middle))), output="last")


def chain(name: str) -> Plan:
    """Return the chain of 200 over a tool."""
    steps = [Step(name=f"c{i}", op=ToolCall(tool=name), needs=(f"c{i - 1}",) if i else ()) for i in range(DEPTH)]
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


# -- beside another checkout -------------------------------------------------------------------------------------------


async def against(other: Path, plans: Sequence[tuple[str, int]], rounds: int) -> list[Row]:
    """Measure this checkout and another one in turn; ratios are of CPU time a step, taken round by round."""
    rows = list[Row]()
    for what, size in plans:

        async def step(folder: Path, what: str = what, size: int = size) -> float:
            return measured_in(folder, what, size)[0]

        figures = await interleave({"here": lambda: step(HERE), "there": lambda: step(other)}, rounds, warmup=0)
        ours, theirs = f"{figures.spread('here')} µs/step", f"{figures.spread('there')} µs/step"
        rows.append(Row(f"{what} of {size:,}", ours, theirs, str(figures.ratio("here", "there"))))
    return rows


def main() -> None:
    """Measure beside asyncio, another checkout of this repository, or other libraries, and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments overhead", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="the other checkout")
    parser.add_argument(
        "--libraries", metavar="PYTHON", help="interpreter of an environment that has burr and pydantic-graph"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, metavar="STEPS", help="time and memory of a fan of this number of steps")
    page_options(parser, "overhead")
    options = parser.parse_args()
    if options.memory is not None:
        time_a_step, memory = measured_in(HERE, "fan", options.memory)
        sys.stdout.write(f"fan of {options.memory:,}: {time_a_step:.1f} µs/step, {memory:,.0f} MiB\n")
        return
    if options.libraries is not None:
        given = given_of(options, "overhead")
        kept = given.records / "libraries.jsonl"
        if not given.report:
            kept.unlink(missing_ok=True)
            asyncio.run(libraries.compare(options.libraries, options.rounds, kept))
        found = given.rows(kept)
        sys.stdout.write(given.write(libraries.page_of(found.lines), found))
        return
    if options.against is not None:
        rows = asyncio.run(against(options.against.resolve(), PLANS, options.rounds))
    else:
        rows = asyncio.run(run())
    show("overhead", rows)
