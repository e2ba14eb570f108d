"""What do votes, threads, plans and agents cost beside vLLM alone, on a model of Llama-3-8B's shape?

The weights are vLLM's dummy ones, so no model is fetched. With a GPU nothing else is needed, and all takes about ten
minutes. Without one, `--pretended MS` replaces the forward pass by a wait (see `pretended_gpu`) and `--layers 2`
keeps the weights small; the page then says nothing about a GPU's kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, tool
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine.engine_loader import prepare
from plait.workers.engine.options import EngineOptions

from .._tools.machine import machine
from .model import CONTEXT, write_model
from .workloads import WORKLOADS, FlowMaker, HandMaker

STARTUP = Path(__file__).resolve().parent.parent / "_tools" / "pretended_gpu"
BUILD = Path("build/experiments/true_size")
SLOTS = 256


@dataclass
class Figures:
    """One pass over the runs of a workload."""

    seconds: float
    """From the first start to the last end."""
    generated: int
    cached_share: float
    """Share of the prompt tokens that the prefix cache had."""
    p50: float
    """Median seconds of a run."""
    p99: float


@tool
async def wait(seconds: float) -> str:
    """Take some time, as a tool does."""
    await asyncio.sleep(seconds)
    return "done"


async def timed(runs: Iterable[Callable[[], Awaitable[Any]]]) -> tuple[float, list[float], list[Any]]:
    """Start all runs at once; return the seconds of all, the seconds of each and what each returned."""

    async def clock(run: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
        start = time.perf_counter()
        returned = await run()
        return time.perf_counter() - start, returned

    start = time.perf_counter()
    pairs = await asyncio.gather(*(clock(run) for run in runs))
    return time.perf_counter() - start, [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def figures_of(seconds: float, each: list[float], generated: int, prompted: int, cached: int) -> Figures:
    """Return the figures of a pass."""
    ordered = sorted(each)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return Figures(seconds, generated, cached / max(prompted, 1), statistics.median(each), p99)


async def by_plait(orchestrator: AsyncOrchestrator, name: str, first: int) -> Figures:
    """Make a workload's runs through plait, each a run of its own with the journal."""
    workload, count = WORKLOADS[name]

    async def planner(ctx: Any, question: str) -> Any:
        await workload(FlowMaker(ctx), int(question))
        return ctx.answer("done")

    numbers = range(first, first + 1_000 * count, 1_000)
    seconds, each, answers = await timed(
        [lambda number=number: orchestrator.run(str(number), planner=planner, tools=[wait]) for number in numbers]
    )
    for answer in answers:
        answer.unwrap()
    prompted, cached = (sum(getattr(answer.usage, key) for answer in answers) for key in ("prompt", "cached"))
    return figures_of(seconds, each, sum(answer.total_tokens for answer in answers), prompted, cached)


async def by_hand(engine: Any, tokenizer: Any, name: str, first: int) -> Figures:
    """Make the same requests by hand on vLLM's `AsyncLLM`."""
    workload, count = WORKLOADS[name]
    maker = HandMaker(engine, tokenizer)
    numbers = range(first, first + 1_000 * count, 1_000)
    seconds, each, _ = await timed([lambda number=number: workload(maker, number) for number in numbers])
    return figures_of(seconds, each, maker.generated, maker.prompted, maker.cached)


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure plait and the client by hand, one engine after the other, and return a row for each pass."""
    folder = write_model(BUILD / f"model-{options.layers}", options.layers)
    shape = {
        "model": str(folder),
        "slots": SLOTS,
        "max_model_len": CONTEXT,
        "kv_cache_memory_bytes": options.cache << 20,
        "engine_args": {"load_format": "dummy"},
    }
    rows = list[dict[str, Any]]()

    def add(who: str, name: str, number: int, figures: Figures) -> None:
        rows.append({"who": who, "workload": name, "round": number, **asdict(figures)})
        rate = figures.generated / figures.seconds
        sys.stderr.write(f"{who}, {name}, round {number}: {rate:,.0f} tokens/s, {figures.cached_share:.0%} cached\n")

    # One engine at a time: a GPU holds one copy of the weights, and the contenders do not share it.
    engine = Plugins().worker("engine", **shape, process="own")
    async with AsyncOrchestrator(workers=[engine]) as orchestrator:
        for number in range(-1, options.rounds):
            for name in WORKLOADS:
                figures = await by_plait(orchestrator, name, 1_000_000 * (number + 2))
                if number >= 0:
                    add("plait", name, number, figures)
    wanted = prepare(EngineOptions(**shape))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    bare = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**{key: value for key, value in wanted.items() if value is not None})
    )
    tokenizer = bare.get_tokenizer()
    tokenizer = await tokenizer if asyncio.iscoroutine(tokenizer) else tokenizer
    for number in range(-1, options.rounds):
        for name in WORKLOADS:
            figures = await by_hand(bare, tokenizer, name, 1_000_000 * (number + 2))
            if number >= 0:
                add("by hand", name, number, figures)
    bare.shutdown()
    return rows


def page(rows: list[dict[str, Any]], about: str) -> str:
    """Return the table of a page: medians over rounds, with plait beside the client by hand."""
    head = ["workload", "tokens/s: plait", "by hand", "ratio", "run p50 ÷", "run p99 ÷", "cached: plait", "by hand"]
    lines = [about, "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]

    def middle(who: str, name: str, value: Callable[[Mapping[str, Any]], float]) -> float:
        return statistics.median(value(row) for row in rows if row["who"] == who and row["workload"] == name)

    for name in WORKLOADS:
        rates = [middle(who, name, lambda row: row["generated"] / row["seconds"]) for who in ("plait", "by hand")]
        p50, p99 = (
            middle("plait", name, operator.itemgetter(key)) / middle("by hand", name, operator.itemgetter(key))
            for key in ("p50", "p99")
        )
        cached = [middle(who, name, lambda row: row["cached_share"]) for who in ("plait", "by hand")]
        lines.append(
            f"| {name} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[0] / rates[1]:.2f} | {p50:.2f} | {p99:.2f} "
            f"| {cached[0]:.0%} | {cached[1]:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments true_size", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32, help="layers of the model; fewer where memory is short")
    parser.add_argument("--cache", type=int, default=16_384, metavar="MIB", help="memory for keys and values")
    parser.add_argument("--pretended", type=float, metavar="MS", help="no GPU: milliseconds of a pretended step")
    options = parser.parse_args()
    step = None if options.pretended is None else str(options.pretended)
    if os.environ.get("PRETENDED_STEP_MS") != step:
        path = os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PRETENDED_STEP_MS": step or "", "PYTHONPATH": path}
        os.execve(sys.executable, [sys.executable, "-m", "experiments", "true_size", *sys.argv[1:]], environment)
    rows = asyncio.run(run(options))
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    device = "the device of this machine" if step is None else f"a pretended GPU of {step} ms a step"
    sys.stdout.write(page(rows, f"{machine()} {options.layers} layers, {options.rounds} rounds, {device}."))
