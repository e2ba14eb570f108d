"""What does an engine pay for its events of cached blocks, and for arithmetic sampling?

What an engine pays for its events of cached blocks, and for the logits processor of arithmetic sampling.

    python -m experiments engine_options [--rounds 60] [--seconds 300]
    python -m experiments engine_options --parts

One engine in this process (vLLM on a CPU, the bundled model), with both; before each turn they are turned off and on
again inside vLLM, and its prefix cache is emptied. (Engines in processes of their own differ by some percent though
they are the same.) Two loads, with the same prompts and seeds for all ways of a round: `decode`, 48 short prompts with
128 tokens of answer each, 32 in flight, no request using the processor; `evicting`, 120 prompts behind 24 headers of
256 tokens with 16 tokens of answer, six in flight, on a cache of a third of the headers, so that blocks come and go all
the time. Seconds of CPU of the process beside `neither`, round by round: mean with its 95 % interval, and median.

`--parts` needs no engine: microseconds of CPU that a prompt costs vLLM's cache manager and our reading of its events,
on a cache that evicts, with 16 tokens of answer; and those of the processor in a step that has no request for it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from timeit import timeit
from typing import Any

from plait import AsyncOrchestrator, Config, ModelCall, Plan, Sampling, Step
from plait.core import Plugin
from plait.core.kv_blocks import CachedBlocks, read
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine import Engine
from plait_bench.countdown import draw

from .._tools.measure import interleave, spread
from .._tools.prompts import words
from .._tools.vllm_cache import ANSWER, BLOCK, TOGETHER, Cache

WAYS = ("neither", "kv_events", "processor")
HEADERS, HEADER, OWN, CACHE = 24, 256, 40, 12 << 20


def decode(number: int) -> tuple[list[ModelCall], int]:
    """Return short prompts of puzzles, and how many are in flight."""
    task = Plugin(name="countdown")
    texts = [Plugins().task(task, problem.text).render("serial") for problem in draw(48, seed=5)]
    sampling = Sampling(max_tokens=128, temperature=1.0, seed=number)
    return [ModelCall(prompt=text, sampling=sampling) for text in texts], 32


def evicting(number: int) -> tuple[list[ModelCall], int]:
    """Return prompts behind a few headers, and how many are in flight. A few headers are wanted most (Zipf)."""
    rng = random.Random(number)
    headers = [words(rng, HEADER) for _ in range(HEADERS)]
    chosen = rng.choices(headers, [1 / (1 + i) for i in range(HEADERS)], k=120)
    sampling = Sampling(max_tokens=16, temperature=1.0, seed=number)
    return [ModelCall(prompt=f"{header} {words(rng, OWN)}", sampling=sampling) for header in chosen], 6


LOADS = {"decode": decode, "evicting": evicting}


class Switch:
    """Turns both off and on in a running engine that was started with them; it must have no requests."""

    def __init__(self, core: Any) -> None:
        inner = core.engine.engine_core.engine_core
        self._core, self._blocks = core, core.cached
        self._manager = inner.scheduler.kv_cache_manager
        batch = inner.model_executor.driver_worker.worker.model_runner.input_batch
        self._batch, self._with = batch, list(batch.logitsprocs.argmax_invariant)
        self._without = [each for each in self._with if type(each).__name__ != "Arithmetic"]
        assert core.cached is not None and len(self._without) == len(self._with) - 1

    def __call__(self, way: str) -> None:
        """Let the engine be one of `WAYS`, with an empty prefix cache."""
        events, processor = way == "kv_events", way == "processor"
        assert self._core.engine.reset_prefix_cache()
        self._manager.take_events()
        self._blocks.lose()
        self._core.cached = self._blocks if events else None
        self._manager.enable_kv_cache_events = self._manager.block_pool.enable_kv_cache_events = events
        self._batch.logitsprocs_need_output_token_ids = processor
        self._batch.logitsprocs.argmax_invariant[:] = self._with if processor else self._without


async def measured(rounds: int, seconds: float) -> list[str]:
    """Measure; return the rows of a table."""
    config = Config(journal="off", policies=(Plugin(name="affinity"),))
    engine = Engine(config.model, slots=32, kv_cache_memory_bytes=CACHE, kv_events=True)
    taken: dict[str, list[dict[str, float]]] = {}
    async with AsyncOrchestrator(workers=[engine], config=config) as orchestrator:
        switch = Switch(engine._core)

        async def play(load: str, way: str) -> float:
            told = taken.setdefault(f"{load}, {way}", [])
            thinks, room = LOADS[load](len(told))
            gate = asyncio.Semaphore(room)

            async def one(op: ModelCall) -> None:
                async with gate:
                    answer = await orchestrator.run("x", plan=Plan(steps=(Step(name="a", op=op),), output="a"))
                    assert answer.status == "done", answer.failure

            switch(way)
            steps, wall, cpu = engine.stats()["steps"], time.perf_counter(), time.process_time()
            await asyncio.gather(*map(one, thinks))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            told.append({"cpu": cpu, "wall": wall, "steps": engine.stats()["steps"] - steps})
            return cpu

        made: dict[str, Callable[[], Awaitable[float]]] = {
            f"{load}, {way}": lambda load=load, way=way: play(load, way) for load in LOADS for way in WAYS
        }
        await interleave(made, rounds, 1, seconds)
    rows: list[str] = []
    for load in LOADS:
        base = taken[f"{load}, neither"][1:]
        each = statistics.median(told["cpu"] / told["steps"] for told in base) * 1e3
        for way in WAYS[1:]:
            pairs = list(zip(taken[f"{load}, {way}"][1:], base, strict=True))
            cpu, wall = ([a[kind] / b[kind] for a, b in pairs] for kind in ("cpu", "wall"))
            rows.append(
                f"| {way} | {load} | {each:.2f} ms | {interval(cpu)} | {statistics.median(cpu):.3f} | "
                f"{interval(wall)} | {len(pairs)} |"
            )
    return rows


def a_prompt(events: bool, header: int, count: int = 400) -> float:
    """Return the µs of CPU of a prompt in vLLM's cache manager, and in what reads its events."""
    rng = random.Random(5)
    headers = [[rng.randrange(5000) for _ in range(header)] for _ in range(HEADERS)]
    weights = [1 / (1 + i) for i in range(HEADERS)]
    asked = [rng.choices(headers, weights)[0] + [rng.randrange(5000) for _ in range(OWN)] for _ in range(count)]
    cache, blocks = Cache(1 + HEADERS * (header + 64) // BLOCK // 3), CachedBlocks()
    manager: Any = cache._manager
    manager.enable_kv_cache_events = manager.block_pool.enable_kv_cache_events = events
    under_way: deque[tuple[int, Any, list[int]]] = deque()
    began = time.process_time()

    def stepped(number: int) -> None:
        for event in manager.take_events():
            blocks.take(read(event))
        if events and number % 16 == 0:
            blocks.news()

    for attempt, ids in enumerate(asked, 1):
        under_way.append((attempt, cache.begin(ids)[0], ids))
        stepped(2 * attempt)
        if len(under_way) == TOGETHER:
            done, request, ids = under_way.popleft()
            cache.end(request, [1] * ANSWER)
            if events:
                blocks.ended(done, ids)
            stepped(2 * attempt + 1)
    return (time.process_time() - began) / count * 1e6


def parts() -> list[str]:
    """Return lines with the cost of events and of an idle processor."""
    lines: list[str] = []
    for header in (256, 512, 2016):
        pairs = [(a_prompt(False, header), a_prompt(True, header)) for _ in range(5)]
        without, added = spread([a for a, _ in pairs]), spread([b - a for a, b in pairs])
        lines.append(f"kv_events, headers of {header} tokens: {added} µs a prompt more than {without}")
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor.interface import BatchUpdate

    from plait.workers.engine.arithmetic import Arithmetic

    config: Any = None  # it is not read
    processor, logits = Arithmetic(config, torch.device("cpu"), False), torch.zeros(32, 288)
    comes = BatchUpdate(batch_size=32, removed=[3], added=[(3, SamplingParams(), [1], [])], moved=[])
    step = timeit(lambda: (processor.update_state(None), processor.apply(logits)), number=100_000) * 10
    request = timeit(lambda: processor.update_state(comes), number=20_000) * 50
    return [*lines, f"processor: {step:.2f} µs a step, {request:.2f} µs a request that comes without it"]


def interval(values: list[float]) -> str:
    """Return a mean with its 95 % interval."""
    mean = statistics.fmean(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return f"{mean:.3f} ({mean - half:.3f}–{mean + half:.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments engine_options", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no round begins that would end later")
    parser.add_argument("--parts", action="store_true", help="without an engine")
    options = parser.parse_args()
    if options.parts:
        sys.stdout.write("\n".join(parts()) + "\n")
        return
    rows = asyncio.run(measured(options.rounds, options.seconds))
    head = "| | load | CPU a step, neither | CPU ÷ neither, mean | median | seconds ÷ neither, mean | rounds |"
    sys.stdout.write("\n".join([head, "|---" * 7 + "|", *rows]) + "\n")
