"""What does the orchestrator cost an engine whose steps are as short as a GPU's?

On a pretended GPU (`_tools/pretended_gpu`), vLLM's scheduler, prefix cache and output processor are its own, and
a wait replaces the forward pass. The figures are tokens a second of plait's worker `engine`, as one plan and as runs
of their own, beside vLLM's `LLMEngine` in a plain loop with the same arguments, prompts and length of answers. The
text of runs that are read streams; they stand beside an `LLMEngine` that returns text at each step. It says nothing
about a GPU's kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, RunEnded
from plait.runtime.client.config import Config
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine.engine_loader import prepare
from plait.workers.engine.options import EngineOptions

from .._tools.measure import Row, interleave
from .._tools.one_plan import rate_plan
from .._tools.rows import show

STARTUP = Path(__file__).resolve().parent.parent / "_tools" / "pretended_gpu"
PROMPT = "Numbers 3 7 25 50, target 100. Run {number}.\n"
CACHE_BYTES = 512 << 20
SLOTS = 512
LOOP, LOOP_TEXT = "vLLM", "vLLM, text by step"


class VllmLoop:
    """vLLM's `LLMEngine` in a plain loop: the baseline."""

    def __init__(self, model: str, tokens: int) -> None:
        wanted = prepare(EngineOptions(model=model, slots=SLOTS, kv_cache_memory_bytes=CACHE_BYTES))
        from vllm import EngineArgs, LLMEngine
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self.engine: Any = LLMEngine.from_engine_args(
            EngineArgs(**{key: value for key, value in wanted.items() if value is not None})
        )
        self.tokenizer: Any = self.engine.get_tokenizer()
        self.params = {
            text: SamplingParams(
                temperature=0.0,
                max_tokens=tokens,
                detokenize=text,
                output_kind=RequestOutputKind.DELTA if text else RequestOutputKind.FINAL_ONLY,
            )
            for text in (False, True)
        }
        self.number = 0

    async def rate(self, prompts: list[str], width: int, text: bool) -> float:
        """Generate for all prompts with `width` in flight, by pieces of `text` or whole; return tokens a second."""
        waiting, tokens, running = deque(prompts), 0, 0
        start = time.perf_counter()
        while waiting or running:
            while waiting and running < width:
                self.engine.add_request(str(self.number), waiting.popleft(), self.params[text])
                self.number += 1
                running += 1
            for output in self.engine.step():
                generated = output.outputs[0].token_ids
                tokens += len(generated) if text or output.finished else 0
                running -= output.finished
                if output.finished and not text:
                    self.tokenizer.decode(generated)
        return tokens / (time.perf_counter() - start)


async def rate_runs(
    orchestrator: AsyncOrchestrator, prompts: list[str], width: int, tokens: int, read: bool = False
) -> float:
    """Run each prompt as a run of its own by the default planner, `width` at a time; return tokens a second."""
    gate = asyncio.Semaphore(width)
    planner = f"single:answer.max_tokens={tokens},answer.temperature=0"

    async def run_one(prompt: str) -> int:
        async with gate:
            if not read:
                return (await orchestrator.run(prompt, planner=planner)).total_tokens
            events = [event async for event in orchestrator.stream(prompt, planner=planner)]
            return next(event.answer.total_tokens for event in events if isinstance(event, RunEnded))

    start = time.perf_counter()
    total = sum(await asyncio.gather(*map(run_one, prompts)))
    return total / (time.perf_counter() - start)


def contenders_of(
    raw: VllmLoop, orchestrator: AsyncOrchestrator, journal: str, prompts: list[str], width: int, tokens: int
) -> Mapping[str, Callable[[], Awaitable[float]]]:
    """Return the contenders by the names of their rows."""
    return {
        LOOP: lambda: raw.rate(prompts, width, text=False),
        LOOP_TEXT: lambda: raw.rate(prompts, width, text=True),
        f"one plan, {journal}": lambda: rate_plan(orchestrator, prompts, width, tokens),
        f"own runs, {journal}": lambda: rate_runs(orchestrator, prompts, width, tokens),
        f"own runs, {journal}, read": lambda: rate_runs(orchestrator, prompts, width, tokens, read=True),
    }


async def run(options: argparse.Namespace) -> list[Row]:
    """Measure at each width, with and without the journal, and return the table's rows."""
    model = Config.load().model
    engine = Plugins().worker("engine", model=model, slots=SLOTS, kv_cache_memory_bytes=CACHE_BYTES, **options.engine)
    rows: list[Row] = []
    raw: VllmLoop | None = None
    for journal, settings in {"journal": {}, "no journal": {"journal": "off"}}.items():
        async with AsyncOrchestrator(workers=[engine], **settings) as orchestrator:
            raw = raw or VllmLoop(model, options.tokens)
            for width in options.width:
                prompts = [PROMPT.format(number=1000 + 37 * number) for number in range(2 * width)]
                contenders = contenders_of(raw, orchestrator, journal, prompts, width, options.tokens)
                figures = await interleave(contenders, options.rounds, seconds=options.seconds)
                if options.kept is not None:
                    keep(options, width, dict(figures.figures))
                for name in list(contenders)[2:]:
                    base = LOOP_TEXT if name.endswith("read") else LOOP
                    ours, theirs = f"{figures.spread(name)} tok/s", f"{base} {figures.spread(base)} tok/s"
                    ratio = str(figures.ratio(name, base))
                    rows.append(Row(f"{width} in flight, {name}", ours, theirs, ratio, "≥ .97"))
                    sys.stderr.write(f"{rows[-1].what}: {ratio}\n")
    return rows


async def measure_ray(options: argparse.Namespace) -> list[Row]:
    """Compare an engine in a Ray actor with one whose EngineCore has a process of its own, journalled."""
    shape: dict[str, Any] = {"slots": SLOTS, "kv_cache_mib": CACHE_BYTES >> 20, "model": Config.load().model}
    rows, ours, theirs = list[Row](), "own process", "Ray"
    async with (
        AsyncOrchestrator(config=Config(worker="engine", engine_process="own", **shape)) as own,
        AsyncOrchestrator(config=Config(worker="ray", **shape)) as ray,
    ):
        for width in options.width:
            prompts = [PROMPT.format(number=1000 + 37 * number) for number in range(2 * width)]
            for what, rate in {"one plan": rate_plan, "own runs": rate_runs}.items():
                contenders = {
                    ours: partial(rate, own, prompts, width, options.tokens),
                    theirs: partial(rate, ray, prompts, width, options.tokens),
                }
                figures = await interleave(contenders, options.rounds, seconds=options.seconds)
                if options.kept is not None:
                    keep(options, width, {f"{what}, {name}": each for name, each in figures.figures.items()})
                rates = f"{figures.spread(ours)} tok/s", f"{figures.spread(theirs)} tok/s"
                rows.append(Row(f"{width} in flight, {what}", *rates, str(figures.ratio(ours, theirs)), "≥ 1"))
                sys.stderr.write(f"{rows[-1].what}: {rows[-1].ratio}\n")
    return rows


async def measure_queue(options: argparse.Namespace) -> list[Row]:
    """Compare one plan that keeps `--queued` calls more with vLLM than its slots: do the slots stay full?"""
    return [row for width in options.width for row in await _measure_queue(options, width)]


async def _measure_queue(options: argparse.Namespace, width: int) -> list[Row]:
    sizes: dict[str, Any] = {"slots": width, "kv_cache_memory_bytes": CACHE_BYTES}
    engine: Any = Plugins().worker("engine", model=Config.load().model, **sizes, **options.engine)
    engine.slots += max(options.queued)  # plait's limit; vLLM's stays
    names = [f"{queued} queued" for queued in options.queued]
    steps: dict[str, list[int]] = {name: [] for name in names}
    texts = [PROMPT.format(number=1000 + 37 * number) for number in range(8 * width)]
    lengths = [48 + 37 * number % 33 for number in range(33)]  # so that the answers end one by one

    async def rate(name: str, in_flight: int) -> float:
        before = engine.stats()["steps"]
        figure = await rate_plan(orchestrator, texts, in_flight, lengths)
        steps[name].append(engine.stats()["steps"] - before)
        return figure

    async with AsyncOrchestrator(workers=[engine], journal="off") as orchestrator:
        contenders = {
            name: partial(rate, name, width + queued) for name, queued in zip(names, options.queued, strict=True)
        }
        figures = await interleave(contenders, options.rounds, seconds=options.seconds)
    if options.kept is not None:
        keep(options, width, dict(figures.figures) | {f"steps, {name}": counts for name, counts in steps.items()})
    middle = {name: f"{statistics.median(counts):g} steps" for name, counts in steps.items()}
    return [
        Row(f"{width} slots, {name}", f"{figures.spread(name)} tok/s, {middle[name]}", names[0],
            str(figures.ratio(name, names[0])), "> 1")
        for name in names
    ]  # fmt: skip


def keep(options: argparse.Namespace, width: int, rates: Mapping[str, object]) -> None:
    """Add the figures of each round to the file of `--kept`."""
    about = {"step_ms": options.step, "width": width, "tokens": options.tokens, "load": round(os.getloadavg()[0], 1)}
    with options.kept.open("a", encoding="utf-8") as out:
        out.write(json.dumps({**about, "engine": options.engine, "rates": rates}) + "\n")


def main() -> None:
    """Measure and print; start the interpreter again with the pretended GPU."""
    parser = argparse.ArgumentParser(prog="python -m experiments pretended_gpu", description=__doc__)
    parser.add_argument("--step", type=float, default=5.0, metavar="MS", help="milliseconds of a forward pass")
    parser.add_argument("--width", type=int, action="append", help="requests in flight; may be given several times")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each width")
    parser.add_argument("--engine", type=json.loads, default={}, metavar="JSON", help="more options of the engine")
    parser.add_argument("--queued", type=int, action="append", help="calls more than slots: compare these alone")
    parser.add_argument("--ray", action="store_true", help="compare a process of its own with a Ray actor alone")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="add the figures of each round to this file")
    options = parser.parse_args()
    options.width = options.width or [32, 128, 512]
    if os.environ.get("PRETENDED_STEP_MS") != str(options.step):
        path = os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PRETENDED_STEP_MS": str(options.step), "PYTHONPATH": path}
        os.execve(sys.executable, [sys.executable, "-m", "experiments", "pretended_gpu", *sys.argv[1:]], environment)
    measure = measure_ray if options.ray else measure_queue if options.queued else run
    show("pretended_gpu", asyncio.run(measure(options)))
