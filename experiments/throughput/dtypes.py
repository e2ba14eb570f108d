"""What does the type of the weights do on a CPU, to the speed of a model and to what it writes?

    python -m experiments.throughput.dtypes [--model smollm2] [--width 8] [--rounds 7] [--kept FILE]

With `--model`: tokens a second of vLLM's own engine with weights in float32 and in bfloat16, in turn, by the clock and
by the process's CPU time. Without: the greedy texts of the bundled models in both types, on prompts as their training
draws them, and of how many they are the same to the last token. Rows are printed, and added to a file if one is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plait.runtime.client.models import folder_of
from training.trades import TRADES

from .._tools.machine import machine
from .._tools.measure import interleave
from .run import Raw, prompts

TYPES = ("float32", "bfloat16")
CACHE = 256 << 20
SLOTS = 32
TOKENS = 64
"""Most tokens of a text."""
SEED = 5

Row = dict[str, Any]


async def rates(model: str, width: int, rounds: int, tokens: int) -> Row:
    """Return the rates of each round by type: tokens a second, and tokens a second of CPU time."""
    texts = prompts(width, chat=True)
    cpu: dict[str, list[float]] = {name: [] for name in TYPES}

    async def rated(name: str, engine: Raw) -> float:
        used, began = time.process_time(), time.perf_counter()
        rate = await engine.rate(texts, width)
        seconds = time.perf_counter() - began
        cpu[name].append(rate * seconds / (time.process_time() - used))
        return rate

    engines = {name: Raw(model, SLOTS, CACHE, tokens, name) for name in TYPES}
    contenders = {name: lambda name=name, engine=engine: rated(name, engine) for name, engine in engines.items()}
    figures = await interleave(contenders, rounds)
    kept = {name: [round(rate, 1) for rate in rates[-rounds:]] for name, rates in cpu.items()}  # without the warm-up
    by_clock = {name: [round(rate, 1) for rate in rates] for name, rates in figures.figures.items()}
    return {"width": width, "tokens": tokens, "a second": by_clock, "a second of CPU": kept}


def asked(trade: str, count: int) -> list[dict[str, list[int]]]:
    """Return prompts of a trade: the part of a trace before the first token that the model is to write."""
    found: list[list[int]] = []
    rng = random.Random(f"{SEED}/{trade}")
    while len(found) < count:
        trace = TRADES[trade].draw(rng)
        prompt = trace.ids[: next(at for at, weight in enumerate(trace.weights) if weight > 0)]
        if prompt not in found:
            found.append(prompt)
    return [{"prompt_token_ids": ids} for ids in found]


_ALIVE: list[Raw] = []
"""An engine that goes takes with it what all engines of a process share."""


async def written(model: str, given: Sequence[Any]) -> dict[str, dict[int, str]]:
    """Return a model's greedy texts by type and by the place of their prompts. Of both types the same prompts are
    decoded together."""
    found: dict[str, dict[int, str]] = {}
    for name in TYPES:
        engine = Raw(model, SLOTS, 64 << 20, TOKENS, name)
        _ALIVE.append(engine)
        await engine.rate(given, SLOTS)
        found[name] = engine.texts
    return found


async def equal(count: int, keep: Callable[[Row], None]) -> None:
    """Tell of how many prompts each bundled model writes the same in both types."""
    for trade, about in TRADES.items():
        for folder in about.folders.values():
            if not (folder / "model.safetensors").is_file() or "models" not in folder.parts:
                continue
            ours, theirs = (await written(str(folder), asked(trade, count))).values()
            assert ours.keys() == theirs.keys() == set(range(count))
            same = sum(ours[place] == theirs[place] for place in ours)
            keep({"model": folder.name, "same": same, "of": count, "tokens": TOKENS})


async def measured(given: argparse.Namespace, keep: Callable[[Row], None]) -> None:
    """Measure what was asked for."""
    if given.model is None:
        await equal(given.count, keep)
        return
    for width in given.width or [8]:
        row = await rates(folder_of(given.model), width, given.rounds, given.tokens)
        keep({"model": given.model, **row})


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m experiments.throughput.dtypes", description=__doc__)
    parser.add_argument("--model", help="tokens a second of this one, such as smollm2")
    parser.add_argument("--width", type=int, action="append", help="in flight; may be given several times")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="most tokens of an answer, with --model")
    parser.add_argument("--count", type=int, default=100, help="prompts of each bundled model")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="add the rows to this file")
    given = parser.parse_args()

    def keep(row: Row) -> None:
        line = json.dumps({**row, "load": round(os.getloadavg()[0], 1)}, ensure_ascii=False)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if given.kept is not None:
            with given.kept.open("a", encoding="utf-8") as out:
                out.write(line + "\n")

    sys.stdout.write(f"{machine()}\n")
    asyncio.run(measured(given, keep))


if __name__ == "__main__":
    main()
