"""How late does a step start while its plan is being written, and what does a chain cost?

What LLMCompiler plans cost: how late a dependent starts while the plan is being written, and what a chain costs.

Late: a plan is written at a line in 0.25 s; task 1 ends between two lines, and task 2, which needs it and is written
already, should start then and not at the next line. The baseline is the wait for that next line, which is how the
original's task fetching unit dispatches. Chain: 100 tools that do nothing, each needing the one before; the whole run
less what the same run of a plan with one task takes. The original's scheduler needs 1.04 s for it (its 10 ms poll).
Parse: 3,000 tasks, each with a reference, in pieces of 16 characters.
"""

from __future__ import annotations

import asyncio
import time

from plait import AsyncOrchestrator, Config, tool
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.workers.scripted import Reply, Scripted

from .._tools.measure import Row, Spread, interleave, spread

LINE_SECONDS, ROUNDS, DEPTH, TASKS = 0.25, 7, 100, 3000
_ended = _started = 0.0


@tool
async def slow(seconds: float) -> str:
    """Take a while."""
    global _ended
    await asyncio.sleep(seconds)
    _ended = time.perf_counter()
    return "done"


@tool
async def after(what: str) -> str:
    """Need something."""
    global _started
    _started = time.perf_counter()
    return what


@tool
async def nothing(what: str = "") -> str:
    """Do nothing."""
    return what


def _joined(replies: str, per_second: float | None = None) -> Scripted:
    joiner = Reply(when="^Answer the question from", text="Action: Finish(done)")
    return Scripted([joiner, Reply(text=replies, tokens_per_second=per_second)])


async def _late() -> float:
    """Milliseconds between the end of a task and the start of what needs it, the plan being written on."""
    # Two tokens a line: task 1 is complete when line 2 begins, and ends when line 3 is half written.
    plan = f"1. slow({2.5 * LINE_SECONDS})\n2. after($1)\n3. nothing()\n4. nothing()\n5. nothing()\n6. join()"
    worker = _joined(plan, per_second=2 / LINE_SECONDS)
    async with AsyncOrchestrator(
        workers=[worker], tools=[slow, after, nothing], config=Config(journal="off")
    ) as orchestrator:
        answer = await orchestrator.run("late", planner="llmcompiler")
    assert answer.status == "done", answer
    return (_started - _ended) * 1e3


async def _chain(depth: int) -> float:
    """Milliseconds of a whole run of a chain of tools that do nothing."""
    lines = [f"{i}. nothing({f'${i - 1}' if i > 1 else ''})" for i in range(1, depth + 1)]
    worker = _joined("\n".join([*lines, "join()"]))
    async with AsyncOrchestrator(workers=[worker], tools=[nothing], config=Config(journal="off")) as orchestrator:
        start = time.perf_counter()
        answer = await orchestrator.run("chain", planner="llmcompiler")
        seconds = time.perf_counter() - start
    assert answer.status == "done", answer
    return seconds * 1e3


async def _plain_chain() -> float:
    """Milliseconds of the same chain in plain asyncio, a task a step."""
    start = time.perf_counter()
    for _ in range(DEPTH):
        await asyncio.create_task(nothing.fn(what=""))
    return (time.perf_counter() - start) * 1e3


async def _parse() -> float:
    """Milliseconds to read a long plan in small pieces."""
    from plait.planners.tools.llmcompiler.parser import PlanText

    text = "".join(f'{i}. search("thing {i}", [${max(1, i - 1)}])\n' for i in range(1, TASKS + 1)) + "join()"
    reader = PlanText()
    start = time.perf_counter()
    tasks = [task for i in range(0, len(text), 16) for task in reader.feed(text[i : i + 16])] + reader.close()
    seconds = time.perf_counter() - start
    assert len(tasks) == TASKS + 1
    return seconds * 1e3


async def _scan() -> float:
    """Milliseconds to split the same text into lines, which is the least that a reader has to do."""
    text = "".join(f'{i}. search("thing {i}", [${max(1, i - 1)}])\n' for i in range(1, TASKS + 1)) + "join()"
    start = time.perf_counter()
    held = ""
    for i in range(0, len(text), 16):
        *_, held = (held + text[i : i + 16]).split("\n")
    return (time.perf_counter() - start) * 1e3


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    assert LLMCompiler().max_branches >= TASKS
    late = await interleave({"late": _late}, ROUNDS, warmup=1)
    chains = await interleave({"chain": lambda: _chain(DEPTH), "one": lambda: _chain(1), "asyncio": _plain_chain}, 15)
    parse = await interleave({"parse": _parse, "scan": _scan}, 9)
    cost = spread([a - b for a, b in zip(chains.figures["chain"], chains.figures["one"], strict=True)])
    wait = 0.5 * LINE_SECONDS * 1e3
    found = late.spread("late")
    ratio = Spread(*(value / wait for value in found))
    return [
        Row("a dependent starts late by", f"{found} ms", f"next line {wait:.3g} ms", str(ratio), "≤ 5 ms"),
        Row(
            f"chain of {DEPTH} no-op tools, in all",
            f"{cost} ms",
            f"asyncio {chains.spread('asyncio')} ms",
            str(chains.ratio("chain", "asyncio")),
            "≤ 20 ms",
        ),
        Row(
            f"reading {TASKS:,} tasks",
            f"{parse.spread('parse')} ms",
            f"splitting lines {parse.spread('scan')} ms",
            str(parse.ratio("parse", "scan")),
            "≤ 50 ms",
        ),
    ]
