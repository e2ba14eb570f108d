"""What do votes, threads, plans and agents cost beside vLLM alone, on a model of Llama-3-8B's shape?

The weights are vLLM's dummy ones and the tokenizer is made here, so nothing is fetched. Both contenders have an engine
of their own from the start to the end, and take turns. No round begins that would end after `--minutes`. Without a
GPU, `--pretended MS` replaces the forward pass by a wait (see `pretended_gpu`) and `--layers 2` keeps the weights
small; the page then says nothing about a GPU's kernels.

A machine with a GPU and no package index needs two things: this repository, and the wheels of `plait[gpu]` and
`transformers` for its Python (`pip download -d wheels 'vllm'` elsewhere, `pip install --no-index --find-links wheels`
there), or a virtual environment that was made at the same path. No weights, tokenizer or data set is read.
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
from typing import Any, TypeVar

from plait import Answer, AsyncOrchestrator, RunEnded, TextDelta, tool
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine.engine_loader import prepare
from plait.workers.engine.options import EngineOptions

from .._tools.machine import machine
from .model import CONTEXT, write_model
from .workloads import WORKLOADS, FlowMaker, HandCounts, HandMaker

STARTUP = Path(__file__).resolve().parent.parent / "_tools" / "pretended_gpu"
BUILD = Path("build/experiments/true_size")
SLOTS = 256
CONTENDERS = ("plait", "by hand")
T = TypeVar("T")


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
    first: float | None
    """Median seconds from a run's start to its first text, where somebody reads it."""


@tool
async def wait(seconds: float) -> str:
    """Take some time, as a tool does."""
    await asyncio.sleep(seconds)
    return "done"


async def timed(runs: Iterable[Callable[[], Awaitable[T]]]) -> tuple[float, list[float], list[T]]:
    """Start all runs at once; return the seconds of all, the seconds of each and what each returned."""

    async def clock(run: Callable[[], Awaitable[T]]) -> tuple[float, T]:
        start = time.perf_counter()
        returned = await run()
        return time.perf_counter() - start, returned

    start = time.perf_counter()
    pairs = await asyncio.gather(*(clock(run) for run in runs))
    return time.perf_counter() - start, [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def figures_of(seconds: float, each: list[float], first: list[float], counts: tuple[int, int, int]) -> Figures:
    """Return the figures of a pass. `counts`: tokens that were generated, of the prompts, and cached of these."""
    ordered = sorted(each)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    generated, prompted, cached = counts
    middle = statistics.median(first) if first else None
    return Figures(seconds, generated, cached / max(prompted, 1), statistics.median(each), p99, middle)


async def by_plait(orchestrator: AsyncOrchestrator, name: str, count: int, first: int, read: bool) -> Figures:
    """Make a workload's runs through plait, each a run of its own with the journal."""
    workload = WORKLOADS[name][0]
    begun = list[float]()

    async def planner(ctx: Any, question: str) -> Any:
        await workload(FlowMaker(ctx, read), int(question))
        return ctx.answer("done")

    async def run_one(number: int) -> Answer:
        if not read:
            return await orchestrator.run(str(number), planner=planner, tools=[wait])
        start, answer = time.perf_counter(), None
        seen = False
        async for event in orchestrator.stream(str(number), planner=planner, tools=[wait]):
            if isinstance(event, TextDelta) and not seen:
                begun.append(time.perf_counter() - start)
                seen = True
            elif isinstance(event, RunEnded):
                answer = event.answer
        assert answer is not None
        return answer

    numbers = range(first, first + 1_000 * count, 1_000)
    seconds, each, answers = await timed([lambda number=number: run_one(number) for number in numbers])
    for answer in answers:
        answer.unwrap()
    prompted, cached = (sum(getattr(answer.usage, key) for answer in answers) for key in ("prompt", "cached"))
    return figures_of(seconds, each, begun, (sum(answer.total_tokens for answer in answers), prompted, cached))


async def by_hand(engine: Any, tokenizer: Any, name: str, count: int, first: int, read: bool) -> Figures:
    """Make the same requests by hand on vLLM's `AsyncLLM`."""
    workload = WORKLOADS[name][0]
    counts = HandCounts()
    makers = [HandMaker(engine, tokenizer, read, counts) for _ in range(count)]
    runs = [lambda maker=maker, number=first + 1_000 * i: workload(maker, number) for i, maker in enumerate(makers)]
    seconds, each, _ = await timed(runs)
    begun = [maker.begun - maker.start for maker in makers if maker.begun is not None]
    return figures_of(seconds, each, begun, (counts.generated, counts.prompted, counts.cached))


async def start_bare(shape: Mapping[str, Any]) -> tuple[Any, Any]:
    """Start vLLM's `AsyncLLM` with the same arguments; return it and its tokenizer."""
    wanted = prepare(EngineOptions(**shape))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    bare = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**{key: value for key, value in wanted.items() if value is not None})
    )
    tokenizer = bare.get_tokenizer()
    return bare, await tokenizer if asyncio.iscoroutine(tokenizer) else tokenizer


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure plait and the client by hand in turn and return a row for each pass."""
    began = time.perf_counter()
    folder = write_model(BUILD / f"model-{options.layers}", options.layers)
    shape = {
        "model": str(folder),
        "slots": SLOTS,
        "max_model_len": CONTEXT,
        "kv_cache_memory_bytes": options.cache << 20,
        # Both engines are on the GPU at once, so that neither has the better minutes.
        "engine_args": {"load_format": "dummy", "gpu_memory_utilization": 0.45},
    }
    rows = list[dict[str, Any]]()
    engine = Plugins().worker("engine", **shape, process="own")
    async with AsyncOrchestrator(workers=[engine]) as orchestrator:
        bare, tokenizer = await start_bare(shape)
        longest = 0.0
        for number in range(-1, options.rounds):
            start = time.perf_counter()
            if number > 0 and start - began + longest > 60 * options.minutes:
                sys.stderr.write(f"stopped before round {number}\n")
                break
            for name, read in [(name, read) for name in WORKLOADS for read in (False, True) if number >= 0 or not read]:
                count = max(1, round(options.share * WORKLOADS[name][1]))
                first = 1_000_000 * (number + 2) + 500_000_000 * read
                for who in CONTENDERS if number % 2 == 0 else reversed(CONTENDERS):
                    if who == "plait":
                        figures = await by_plait(orchestrator, name, count, first, read)
                    else:
                        figures = await by_hand(bare, tokenizer, name, count, first, read)
                    if number < 0:  # caches, compiled kernels and threads
                        continue
                    load = round(os.getloadavg()[0], 1)
                    rows.append({"who": who, "workload": name, "read": read, "round": number, "load": load,
                                 **asdict(figures)})  # fmt: skip
                    sys.stderr.write(f"{who}, {name}, {'read' if read else 'whole'}, round {number}: "
                                     f"{figures.generated / figures.seconds:,.0f} tokens/s\n")  # fmt: skip
            longest = max(longest, time.perf_counter() - start)
        bare.shutdown()
    return rows


def ratios(rows: list[dict[str, Any]], name: str, read: bool, value: Callable[[Mapping[str, Any]], float]) -> str:
    """Return plait ÷ by hand of a value, round by round: the median and, with several rounds, the range."""
    ours, theirs = (
        [value(row) for row in rows if (row["who"], row["workload"], row["read"]) == (who, name, read)]
        for who in CONTENDERS
    )
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    spread = f" ({min(each):.2f}–{max(each):.2f})" if len(each) > 1 else ""
    return f"{statistics.median(each):.2f}{spread}"


def page(rows: list[dict[str, Any]], about: str) -> str:
    """Return the table of a page: medians over rounds, with plait beside the client by hand."""
    head = ["workload", "tokens/s by hand", "plait ÷ by hand", "run p99 ÷", "cached: plait", "by hand",
            "tokens/s read by hand", "read ÷", "first token by hand, ms", "first token ÷"]  # fmt: skip
    lines = [about, "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]

    def middle(who: str, name: str, read: bool, value: Callable[[Mapping[str, Any]], float]) -> float:
        wanted = (who, name, read)
        return statistics.median(value(row) for row in rows if (row["who"], row["workload"], row["read"]) == wanted)

    def rate(row: Mapping[str, Any]) -> float:
        return row["generated"] / row["seconds"]

    p99, first, cached = map(operator.itemgetter, ("p99", "first", "cached_share"))
    for name in WORKLOADS:
        cells = [
            f"{middle('by hand', name, False, rate):,.0f}",
            ratios(rows, name, False, rate),
            ratios(rows, name, False, p99),
            *(f"{middle(who, name, False, cached):.0%}" for who in CONTENDERS),
            f"{middle('by hand', name, True, rate):,.0f}",
            ratios(rows, name, True, rate),
            f"{1e3 * middle('by hand', name, True, first):,.0f}",
            ratios(rows, name, True, first),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments true_size", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=11.0, help="no round begins that would end later")
    parser.add_argument("--share", type=float, default=1.0, help="of the runs of each workload")
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
