"""Those who solve puzzles on one OpenAI server, and what they and the server say of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from plait import AsyncOrchestrator
from plait_bench.countdown import CountdownProblem, is_right

from .measure import Spread, spread
from .server import Server

__all__ = [
    "IN_FLIGHT",
    "OURS",
    "SEED",
    "THREADS",
    "VOTES",
    "Contend",
    "Measurement",
    "Solve",
    "column",
    "each",
    "measured",
    "ours",
]

IN_FLIGHT, SEED = 32, 23
VOTES, THREADS = "votes of 8", "threads of width 8"
OURS: dict[str, dict[str, Any]] = {
    VOTES: {"planner": "sample:n=8,answer.temperature=1,answer.max_tokens=512,early=true", "merge": "best-of"},
    THREADS: {"planner": "threads:n=8"},
}
Solve = Callable[[CountdownProblem, int], Awaitable[tuple[bool, int]]]
"""Solves a problem with a seed; returns whether it did, and the tokens that it knows to have been generated."""


class Measurement(NamedTuple):
    """One contender in one round."""

    rate: float
    """Problems a second."""
    solved: float
    """Share."""
    tokens: float
    """Generated a problem; this and the next are by the server's or engine's own count."""
    late: float
    """Of these, after the problem was solved; nan inside an engine."""
    requests: float
    """Sent a problem."""
    cpu: float
    """The client's, milliseconds a problem; nan where it holds the engine."""


Contend = Callable[[list[CountdownProblem], int], Awaitable[tuple[float, float, int, float]]]
"""Solves problems with seeds from a number on: problems a second, how many were solved, tokens known of, CPU
seconds."""


def each(solve: Solve) -> Contend:
    """Return a contender that solves `IN_FLIGHT` problems at a time in this process."""

    async def all_of(problems: list[CountdownProblem], first: int) -> tuple[float, float, int, float]:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def one(i: int, problem: CountdownProblem) -> tuple[bool, int]:
            async with room:
                return await solve(problem, first + i)

        start, cpu = time.perf_counter(), time.process_time()
        found = await asyncio.gather(*(one(i, problem) for i, problem in enumerate(problems)))
        rate, cpu = len(problems) / (time.perf_counter() - start), time.process_time() - cpu
        return rate, sum(solved for solved, _ in found), sum(tokens for _, tokens in found), cpu

    return all_of


def ours(orchestrator: AsyncOrchestrator, kind: str) -> Solve:
    """Return our way of a kind of work."""

    async def solve(problem: CountdownProblem, seed: int) -> tuple[bool, int]:
        answer = await orchestrator.run(problem.text, task="countdown", seed=seed, **OURS[kind])
        return is_right(problem, answer.answer), answer.total_tokens

    return solve


async def measured(
    server: Server, contend: Contend, problems: list[CountdownProblem], first: int, local: bool = False
) -> Measurement:
    """Let a contender solve the problems, and return its own and the server's figures."""
    await asyncio.to_thread(server.watched)
    with server.stopped() if local else contextlib.nullcontext():
        rate, solved, known, cpu = await contend(problems, first)
    await asyncio.sleep(0.5)  # the last that was given up is on its way
    seen, count = await asyncio.to_thread(server.watched), len(problems)
    if local:
        return Measurement(rate, solved / count, known / count, math.nan, math.nan, math.nan)
    tokens, late, requests = (seen[name] / count for name in ("generated", "late", "requests"))
    return Measurement(rate, solved / count, tokens, late, requests, 1000 * cpu / count)


def column(told: list[Measurement], name: str) -> Spread:
    """Return the spread of one column."""
    return spread([getattr(one, name) for one in told])
