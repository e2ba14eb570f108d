"""Is each default within a tenth of the best setting found?

Votes and threads over `http`, 32 puzzles at a time, with one setting changed at a time and, for `slots`, with and
without the policy `breadth-first`. On servers without a model (`scripted_server`), which have the speeds of a small
model on two cores and of a large one on a GPU, or, with `--engine`, on a real one. All settings in turn in each round.
A row: problems a second of a setting, and those of the defaults divided by it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Config
from plait_bench.countdown import draw

from .._tools.contenders import OURS, SEED, Measurement, column, each, measured, ours
from .._tools.measure import Row, interleave
from .._tools.rows import show
from .._tools.server import Server, scripted, served

ORDER = {"policies": ("breadth-first",)}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    **{f"slots={n}": {"slots": n} for n in (32, 64, 128)},
    **{f"slots={n}, breadth-first": {"slots": n, **ORDER} for n in (32, 64, 128)},
    "stream_above_tokens=0": {"stream_above_tokens": 0},
    "hints=none": {"hints": "none"},
    "policies=critical-path": {"policies": ("critical-path",)},
}
SPEEDS = {"two cores": ("--base=0.003", "--each=0.0002"), "GPU": ("--base=0.01", "--each=0.00002")}
"""Seconds of a step of the engine, and more for each answer in flight: a batch of 256 takes 4 and 1.5 times as long as
one of 64."""


async def sweep(server: Server, count: int, rounds: int, seconds: float) -> dict[str, dict[str, list[Measurement]]]:
    """Return the result of each setting, by kind of work."""
    problems = draw(count, SEED + 1)
    found: dict[str, dict[str, list[Measurement]]] = {kind: {} for kind in OURS}
    async with contextlib.AsyncExitStack() as stack:
        made: dict[str, Callable[[], Awaitable[float]]] = {}
        for setting, options in SETTINGS.items():
            config = Config.model_validate({"worker": "http", "base_url": server.url, "journal": "off", **options})
            orchestrator = await stack.enter_async_context(AsyncOrchestrator(config=config))
            for kind in OURS:

                async def one(setting: str = setting, kind: str = kind, at: Any = orchestrator) -> float:
                    measured_ = found[kind].setdefault(setting, [])
                    said = await measured(server, each(ours(at, kind)), problems, len(measured_) * count)
                    measured_.append(said)
                    sys.stderr.write(f"{kind}, {setting}: {said.rate:.2f} problems/s\n")
                    return said.rate

                made[f"{kind}, {setting}"] = one
        await interleave(made, rounds, 0, seconds)
    return found


def rows_of(where: str, found: dict[str, dict[str, list[Measurement]]]) -> list[Row]:
    """Return the table's rows."""
    rows: list[Row] = []
    for kind, settings in found.items():
        best = max(settings, key=lambda setting: column(settings[setting], "rate").median)
        for setting, measured_ in settings.items():
            ratio = [a.rate / b.rate for a, b in zip(settings["defaults"], measured_, strict=True)]
            tokens, late = (column(measured_, name).median for name in ("tokens", "late"))
            said = f"{column(measured_, 'rate')} problems/s, {tokens:,.0f} tokens, {late:.1f} late"
            what = f"{where}, {kind}, {setting}{', the best' if setting == best else ''}"
            spread = f"{sorted(ratio)[len(ratio) // 2]:.2f} ({min(ratio):.2f}–{max(ratio):.2f})"
            rows.append(Row(what, said, "defaults ÷ this", spread, "≥ 0.9"))
    return rows


async def run(
    count: int = 48, rounds: int = 3, seconds: float = math.inf, engine: bool = False, only: str = ""
) -> list[Row]:
    """Measure and return the rows. `seconds`: for each server; no round begins that would end later."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        if engine:
            async with served(log) as server:
                return rows_of("vLLM", await sweep(server, count, rounds, seconds))
        for where, options in SPEEDS.items():
            if only in where:
                async with scripted(log, *options) as server:
                    rows += rows_of(where, await sweep(server, count, rounds, seconds))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments defaults", description=__doc__)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--engine", action="store_true", help="on vLLM's server with the bundled model")
    parser.add_argument("--only", default="", help=f"one of the speeds: {', '.join(SPEEDS)}")
    options = parser.parse_args()
    show("defaults", asyncio.run(run(options.problems, options.rounds, options.seconds, options.engine, options.only)))
