"""How many events a second does the machine alone handle?

Events a second that the machine alone handles, on 10,000 and 100,000 steps: no loop, no worker, no journal.

The baseline is the smallest thing that could do the order at all: counts of missing needs and a deque. Beside another
checkout of this repository, in one interleaved run: `python -m experiments machine_rate --against FOLDER`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from plait.core import Join, Plan, Request, Result, Step, ToolCall
from plait.core.events import Dispatch, Submitted, Succeeded, WorkerUp
from plait.machine.machine import Machine
from plait.runtime.plugins.loader import Plugins
from scripts.checkout import python_path

from .._tools.measure import Rounds, Row, interleave
from .._tools.rows import show

ROUNDS = 5
HERE = Path(__file__).resolve().parents[2]


def fan(size: int) -> Plan:
    """Return 1→size→1."""
    middle = [f"m{i}" for i in range(size)]
    steps = [Step(name=each, op=ToolCall(tool="nothing"), needs=("first",)) for each in middle]
    first = Step(name="first", op=ToolCall(tool="nothing"))
    return Plan(steps=(first, *steps, Step(name="last", op=Join(), needs=tuple(middle))), output="last")


def drive(plan: Plan) -> float:
    """Take a plan from submission to its end; events a second of time spent in `handle`, the submission's included."""
    machine = Machine(Plugins())
    machine.handle(WorkerUp(at=0.0, worker="w", slots=64, serves=("call",)))
    submitted = Submitted(at=0.0, run="r", request=Request(), plan=plan)
    nothing, clock = Result(), time.perf_counter
    events = 1
    start = clock()
    todo = deque(machine.handle(submitted))
    seconds = clock() - start
    while todo:
        action = todo.popleft()
        if isinstance(action, Dispatch):
            event = Succeeded(at=0.0, attempt=action.job.attempt, result=nothing)
            start = clock()
            actions = machine.handle(event)
            seconds += clock() - start
            todo.extend(actions)
            events += 1
    assert not machine.runs
    return events / seconds


def bare(plan: Plan) -> float:
    """The same order by counting alone; steps a second."""
    start = time.perf_counter()
    missing = {step.name: len(step.needs) for step in plan.steps}
    readers: dict[str, list[str]] = {step.name: [] for step in plan.steps}
    for step in plan.steps:
        for need in step.needs:
            readers[need].append(step.name)
    todo = deque(name for name, count in missing.items() if not count)
    done = 0
    while todo:
        done += 1
        for name in readers[todo.popleft()]:
            missing[name] -= 1
            if not missing[name]:
                todo.append(name)
    assert done == len(plan.steps)
    return done / (time.perf_counter() - start)


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    plans = {size: fan(size) for size in (10_000, 100_000)}

    async def measured(size: int, contender: Callable[[Plan], float], collect: bool) -> float:
        if not collect:
            gc.disable()
        try:
            return contender(plans[size])
        finally:
            gc.enable()

    contenders = {
        f"{name} {size}": lambda size=size, call=call, collect=collect: measured(size, call, collect)
        for size in plans
        for name, call, collect in (("machine", drive, True), ("no gc", drive, False), ("bare", bare, True))
    }
    figures = await interleave(contenders, ROUNDS)
    rows = [_row(figures, size) for size in plans]
    for name, what in (("machine", "with"), ("no gc", "without")):
        linear = figures.ratio(f"{name} 100000", f"{name} 10000")
        rows.append(Row(f"100,000 ÷ 10,000 steps, {what} gc", str(linear), "", "", "1: linear"))
    return rows


def _row(figures: Rounds, size: int) -> Row:
    machine, quiet, base = (figures.spread(f"{name} {size}") for name in ("machine", "no gc", "bare"))
    ours = f"{machine.median:,.0f} ({machine.low:,.0f}–{machine.high:,.0f}) events/s; {quiet.median:,.0f} without gc"
    ratio = figures.ratio(f"machine {size}", f"bare {size}")
    return Row(f"machine, {size:,} steps", ours, f"counting alone {base.median:,.0f} steps/s", str(ratio), "≥ 80,000")


# -- beside another checkout -------------------------------------------------------------------------------------------


def measured_in(folder: Path, size: int) -> tuple[float, float]:
    """Return events a second and peak MiB of a checkout's machine, in a process of its own."""
    path = python_path(folder, folder / "src")  # checkouts from before the roots have links to the package in `src`
    package = "plait" if any((folder / root / "plait").is_dir() for root in ("orchestrator", "src")) else "orchestrator"
    command = [sys.executable, str(Path(__file__).with_name("child.py")), str(size), package]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    rate, memory = json.loads(done.stdout)
    return rate, memory


async def against(other: Path, sizes: Sequence[int], rounds: int) -> list[Row]:
    """Measure this checkout and another one in turn; ratios are of events a second, taken round by round."""
    here, rows = HERE, list[Row]()
    for size in sizes:
        memory: dict[Path, float] = {}

        async def rate(folder: Path, size: int = size, memory: dict[Path, float] = memory) -> float:
            made, memory[folder] = measured_in(folder, size)
            return made

        figures = await interleave({"here": lambda: rate(here), "there": lambda: rate(other)}, rounds, warmup=0)
        ours, theirs = figures.spread("here"), figures.spread("there")
        rows.append(
            Row(
                f"{size:,} steps",
                f"{ours.median:,.0f} ({ours.low:,.0f}–{ours.high:,.0f}) events/s, {memory[here]:,.0f} MiB",
                f"{theirs.median:,.0f} ({theirs.low:,.0f}–{theirs.high:,.0f}) events/s, {memory[other]:,.0f} MiB",
                str(figures.ratio("here", "there")),
            )
        )
    return rows


def main() -> None:
    """Measure, or compare this checkout's machine with another one's, and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments machine_rate", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="the other checkout")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="STEPS")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    there = options.against and against(options.against.resolve(), options.sizes, options.rounds)
    show("machine_rate", asyncio.run(there or run()))
