"""What does it cost to keep the confidence of 256 long branches up to date with every token?

Confidence of 256 branches of 20,000 tokens, in windows of 2,048, kept up to date with every token; seconds.

The baseline recomputes the sum of each window, which is what is left to do without a running sum; it is timed on a part
of one branch and counted up. The figures of a position, made of 20 log-probabilities, are a row of their own.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .._tools.measure import Row, interleave

BRANCHES, TOKENS, WINDOW, TOP = 256, 20_000, 2_048, 20
PART = 2_000
"""Windows of one branch that the baseline is timed on."""
ROUNDS = 3


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    signals = importlib.import_module("plait.workers._shared.confidence")
    draw = np.random.default_rng(1)
    steps = draw.gamma(4.0, 3.0, size=(TOKENS, BRANCHES))
    lists = steps.tolist()
    one = steps[:, 0]

    def incremental() -> list[Any]:
        traces = [signals.Trace(TOP, WINDOW) for _ in range(BRANCHES)]
        for step in lists:
            for trace, confidence in zip(traces, step, strict=True):
                trace.add(confidence, 0.5)
        return [trace.signals() for trace in traces]

    def naive() -> float:
        return min(float(np.mean(one[end - WINDOW : end])) for end in range(WINDOW, WINDOW + PART))

    rows = np.log(draw.dirichlet(np.full(64, 0.1), size=BRANCHES) + 1e-12)
    rows = -np.sort(-rows, axis=1)[:, :TOP].astype(np.float32)

    def apart() -> None:
        for row in rows:
            signals.measure(row[None])

    async def ours() -> float:
        return timed(incremental)

    async def theirs() -> float:
        return timed(naive) / PART * (TOKENS - WINDOW + 1) * BRANCHES

    async def together() -> float:
        return min(timed(lambda: signals.measure(rows)) for _ in range(5)) / BRANCHES * 1e6

    async def alone() -> float:
        return min(timed(apart) for _ in range(5)) / BRANCHES * 1e6

    contenders = {"ours": ours, "naive": theirs, "together": together, "alone": alone}
    figures = await interleave(contenders, ROUNDS)
    sliding, recomputed = figures.spread("ours"), figures.spread("naive")
    position, single = figures.spread("together"), figures.spread("alone")
    return [
        Row(
            f"{BRANCHES} branches of {TOKENS:,} tokens",
            f"{sliding} s",
            f"each window recomputed {recomputed} s",
            str(figures.ratio("ours", "naive")),
            "< 2 s",
        ),
        Row(
            f"a position's figures, of {BRANCHES} requests at once",
            f"{position} µs",
            f"one by one {single} µs",
            str(figures.ratio("together", "alone")),
        ),
    ]
