"""What does the orchestrator cost an engine, in process and through Ray?

Tokens a second through the orchestrator, in process and through a Ray actor, beside the raw engine.

The raw engine is vLLM's own `LLMEngine`, stepped by a plain loop, at the same number of requests in flight. All
contenders have the same arguments of the engine, the same prompts as text and the same greedy tokens, which each turns
into text once, at the end of a request. Only one contender works at a time.
Rounds are short and many, since a shared machine's speed drifts by more within a minute than the contenders differ.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Plugin
from plait.core import Worker
from plait.runtime.client.config import Config
from plait.runtime.plugins.loader import Plugins
from plait.workers.engine.engine_loader import prepare
from plait.workers.engine.options import EngineOptions
from plait_bench.countdown import draw

from .._tools.measure import Row, interleave
from .._tools.one_plan import rate_plan
from .._tools.rows import show

WIDTHS, ROUNDS = (8, 32, 128), 12
MAX_TOKENS = 256


def prompts(count: int, chat: bool = False) -> list[str]:
    """Return prompts of different problems, so that no cache favours one contender; with `chat` as sentences."""
    if chat:
        return [f"Tell a story of {count + n} words about the number {1000 + 37 * n}.\n\n" for n in range(count)]
    task = Plugin(name="countdown")
    return [Plugins().task(task, problem.text).render("serial") for problem in draw(count, seed=5)]


class Raw:
    """vLLM's engine with nothing around it. Its prompts are texts or ids of tokens."""

    def __init__(self, model: str, slots: int, cache: int, tokens: int, dtype: Any = "auto") -> None:
        spec = EngineOptions(model=model, slots=slots, kv_cache_memory_bytes=cache, dtype=dtype)
        wanted = prepare(spec)  # before vLLM is imported, which reads what this sets
        from vllm import EngineArgs, LLMEngine  # the baseline is vLLM itself
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        args = EngineArgs(**{key: value for key, value in wanted.items() if value is not None})
        self.engine: Any = LLMEngine.from_engine_args(args)
        self.tokenizer: Any = self.engine.get_tokenizer()
        self.params = SamplingParams(
            temperature=0.0, max_tokens=tokens, output_kind=RequestOutputKind.FINAL_ONLY, detokenize=False
        )
        self.texts: dict[int, str] = {}
        """What was written last, by the place of its prompt."""
        self.number = 0

    async def rate(self, texts: Sequence[Any], width: int) -> float:
        """Generate for all texts, `width` in flight; tokens a second."""
        todo, tokens, running = deque(texts), 0, 0  # in the order in which the others take them
        self.texts.clear()
        first, start = self.number, time.perf_counter()
        while todo or running:
            while todo and running < width:
                self.engine.add_request(str(self.number), todo.popleft(), self.params)
                self.number += 1
                running += 1
            for output in self.engine.step():
                if output.finished:
                    running -= 1
                    tokens += len(output.outputs[0].token_ids)
                    text = self.tokenizer.decode(output.outputs[0].token_ids)
                    self.texts[int(output.request_id.partition("-")[0]) - first] = text
        return tokens / (time.perf_counter() - start)


async def run(
    widths: Sequence[int] = WIDTHS,
    rounds: int = ROUNDS,
    seconds: float = math.inf,
    tokens: int = MAX_TOKENS,
    model: str | None = None,
    kept: Path | None = None,
    through_ray: bool = True,
) -> list[Row]:
    """Measure and return the table's rows. `seconds`: for each width; no round begins that would end later. `model`: in
    place of the bundled one. `kept`: a file for the figures of each round. `through_ray`: measure that too."""
    config = Config.load(**({} if model is None else {"model": model}))
    plugins = Plugins()
    slots = max(WIDTHS)
    cache = 256 << 20
    local: Worker = plugins.worker("engine", model=config.model, slots=slots, kv_cache_memory_bytes=cache)
    rows: list[Row] = []
    async with contextlib.AsyncExitStack() as stack:
        ours = {"in process": await stack.enter_async_context(AsyncOrchestrator(workers=[local]))}
        if through_ray:
            there = AsyncOrchestrator(model=config.model, worker="ray", slots=slots, kv_cache_mib=256)
            ours["ray"] = await stack.enter_async_context(there)
        raw = Raw(config.model, slots, cache, tokens)
        for width in widths:
            texts = prompts(max(2 * width, 32), chat=model is not None)
            contenders = {
                "raw": lambda texts=texts, width=width: raw.rate(texts, width),
                **{
                    name: lambda one=one, texts=texts, width=width: rate_plan(one, texts, width, tokens)
                    for name, one in ours.items()
                },
            }
            figures = await interleave(contenders, rounds, seconds=seconds)
            base = figures.spread("raw")
            if kept is not None:
                about = {"model": Path(config.model).name, "width": width, "tokens": tokens, "load": os.getloadavg()[0]}
                with kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({**about, "rates": dict(figures.figures)}) + "\n")
            for name in ours:
                rate, ratio = figures.spread(name), figures.ratio(name, "raw")
                goal = "≥ 0.98" if name == "in process" else "≥ 0.97"
                rows.append(Row(f"{width} in flight, {name}", f"{rate} tok/s", f"raw {base} tok/s", str(ratio), goal))
                sys.stderr.write(f"{rows[-1].what}: {rate}; raw {base}; {ratio}\n")
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments throughput", description=__doc__)
    parser.add_argument("--width", type=int, action="append", help="in flight; may be given several times")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each width")
    parser.add_argument("--tokens", type=int, default=MAX_TOKENS, help="most tokens of an answer")
    parser.add_argument("--model", help="another model than the bundled one, such as smollm2")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="add the figures of each round to this file")
    parser.add_argument("--without-ray", action="store_true", help="leave out the contender that goes through Ray")
    options = parser.parse_args()
    widths, rounds = options.width or WIDTHS, options.rounds
    show(
        "throughput",
        asyncio.run(
            run(widths, rounds, options.seconds, options.tokens, options.model, options.kept, not options.without_ray)
        ),
    )
