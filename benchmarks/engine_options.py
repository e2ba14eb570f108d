"""What an engine pays for its events of cached blocks, and for the logits processor of arithmetic sampling.

    python -m benchmarks.engine_options [--rounds 60] [--seconds 300]

One engine in this process (vLLM on a CPU, the bundled model), with both; before each turn they are turned off and on
again inside vLLM, and its prefix cache is emptied. (Engines in processes of their own differ by some percent though
they are the same.) Two loads, with the same prompts and seeds for all ways of a round: `decode`, 48 short prompts with
128 tokens of answer each, 32 in flight, no request using the processor; `evicting`, 120 prompts behind 24 headers of
256 tokens with 16 tokens of answer, six in flight, on a cache of a third of the headers, so that blocks come and go all
the time. Seconds of CPU of the process beside `neither`, round by round: mean with its 95 % interval, and median.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from plait import AsyncOrchestrator, Config, Plan, Sampling, Step, Think
from plait.apps.common.problems import draw
from plait.core import Plugin
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine import Engine

from .four_engines import words
from .measure import interleave

WAYS = ("neither", "kv_events", "processor")
HEADERS, HEADER, OWN, CACHE = 24, 256, 40, 12 << 20


def decode(number: int) -> tuple[list[Think], int]:
    """Return short prompts of puzzles, and how many are in flight."""
    task = Plugin(name="countdown")
    texts = [Plugins().task(task, problem.text).render("serial") for problem in draw(48, seed=5)]
    sampling = Sampling(max_tokens=128, temperature=1.0, seed=number)
    return [Think(prompt=text, sampling=sampling) for text in texts], 32


def evicting(number: int) -> tuple[list[Think], int]:
    """Return prompts behind a few headers, and how many are in flight. A few headers are wanted most (Zipf)."""
    rng = random.Random(number)
    headers = [words(rng, HEADER) for _ in range(HEADERS)]
    chosen = rng.choices(headers, [1 / (1 + i) for i in range(HEADERS)], k=120)
    sampling = Sampling(max_tokens=16, temperature=1.0, seed=number)
    return [Think(prompt=f"{header} {words(rng, OWN)}", sampling=sampling) for header in chosen], 6


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

            async def one(op: Think) -> None:
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


def interval(values: list[float]) -> str:
    """Return a mean with its 95 % interval."""
    mean = statistics.fmean(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return f"{mean:.3f} ({mean - half:.3f}–{mean + half:.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_options", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no round begins that would end later")
    options = parser.parse_args()
    rows = asyncio.run(measured(options.rounds, options.seconds))
    head = "| | load | CPU a step, neither | CPU ÷ neither, mean | median | seconds ÷ neither, mean | rounds |"
    sys.stdout.write("\n".join([head, "|---" * 7 + "|", *rows]) + "\n")


if __name__ == "__main__":
    main()
