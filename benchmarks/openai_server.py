"""Against one OpenAI server: votes with early stop and spawned threads, ours and written by hand in asyncio.

A hundred puzzles, 32 at the same time, on vLLM's own server with the bundled model; every contender in turn in each
round, and other seeds in the next. Every contender has the same means: the same samples, prompts and limits, whole
answers, losers given up by closing their connections, one compute thread for an engine. `256 at a time` sends every
branch as soon as it can run; `64 in order` sends 64, the first branches of all puzzles before the second of any. A row
with such a name is compared with the one by hand of the same name, any other with the faster of the two by hand. `plain
n=8` asks for eight samples in one request and waits for all; `defaults` is ours as it comes. `in process` is the same
job on our engine without a server, which stands still meanwhile; `one engine in Ray` the same in an actor, `two
engines in Ray` on two: these have no connection to pay for. The server keeps two cores busy with its one thread, our
engine one. Tokens a problem are those that the server or engine has generated, by its own counter. How many come after
a vote is decided, the benchmark `aborts` measures inside the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Config
from plait.apps.common.problems import Problem, draw, is_right

from . import by_hand
from .measure import Rounds, Row, interleave
from .server import served

PROBLEMS, IN_FLIGHT, ROUNDS, SEED = 100, 32, 3, 23
WIDE, ORDERED = "256 at a time", "64 in order"
GATES: dict[str, dict[str, Any]] = {
    WIDE: {"slots": 256, "policies": ()},
    ORDERED: {"slots": 64, "policies": ("breadth-first",)},
}
VOTES, THREADS = "votes of 8", "threads of width 8"
OURS: dict[str, dict[str, Any]] = {
    VOTES: {"planner": "sample:n=8,temperature=1,max_tokens=512,early=true", "merge": "best-of"},
    THREADS: {"planner": "threads:width=8"},
}
HAND = {VOTES: by_hand.early_votes, THREADS: by_hand.spawn_join}
Solve = Callable[[Problem, int], Awaitable[tuple[bool, int]]]
"""Solves a problem with a seed; returns whether it did, and the tokens that it knows to have been generated."""


async def _all(solve: Solve, problems: list[Problem], first: int) -> tuple[float, int, int]:
    """Solve with seeds from `first` on; return problems a second, how many were solved, and the tokens known of."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(i: int, problem: Problem) -> tuple[bool, int]:
        async with room:
            return await solve(problem, first + i)

    start = time.perf_counter()
    found = await asyncio.gather(*(one(i, problem) for i, problem in enumerate(problems)))
    rate = len(problems) / (time.perf_counter() - start)
    return rate, sum(solved for solved, _ in found), sum(tokens for _, tokens in found)


def _ours(orchestrator: AsyncOrchestrator, kind: str) -> Solve:
    async def solve(problem: Problem, seed: int) -> tuple[bool, int]:
        answer = await orchestrator.run(problem.text, task="countdown", seed=seed, **OURS[kind])
        return is_right(problem, answer.answer), answer.total_tokens

    return solve


def _hand(create: Any, slots: int, run: Any) -> Solve:
    client = by_hand.Client(create, slots)

    async def solve(problem: Problem, seed: int) -> tuple[bool, int]:
        return await run(client, problem, seed), 0

    return solve


async def run(count: int = PROBLEMS, rounds: int = ROUNDS, seconds: float = math.inf, ray: bool = True) -> list[Row]:
    """Measure and return the table's rows; `seconds`: no round begins that would end later. `ray=False`: without the
    rows in Ray."""
    from openai import AsyncOpenAI

    problems = draw(count, SEED)
    told: dict[str, list[tuple[int, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(served(Path(folder) / "server.log"))
            client = await stack.enter_async_context(AsyncOpenAI(base_url=server.url, api_key="none", timeout=300))
            create = client.completions.create
            solvers = {"by hand, plain n=8": _hand(create, 256, by_hand.plain_votes)}
            for gate, settings in GATES.items():
                for kind, hand in HAND.items():
                    solvers[f"by hand, {kind}, {gate}"] = _hand(create, settings["slots"], hand)
            for (before, after), config in ways(server.url).items():
                if "Ray" in before and not ray:
                    continue
                orchestrator = await stack.enter_async_context(AsyncOrchestrator(config=config))
                for kind in OURS:
                    solvers[f"{before}, {kind}{after}"] = _ours(orchestrator, kind)

            def contender(name: str, solve: Solve) -> Callable[[], Awaitable[float]]:
                async def measured() -> float:
                    before, number = await asyncio.to_thread(server.generated), len(told.setdefault(name, []))
                    with server.stopped() if _local(name) else contextlib.nullcontext():
                        rate, solved, known = await _all(solve, problems, number * count)
                    await asyncio.sleep(0.3)  # the last aborts are on their way
                    total = await asyncio.to_thread(server.generated) - before or known
                    told[name].append((solved, total / count))
                    sys.stderr.write(f"{name}: {rate:.2f} problems/s\n")  # so that one that is ended has told something
                    return rate

                return measured

            figures = await interleave({k: contender(k, v) for k, v in solvers.items()}, rounds, 0, seconds)
    names = sorted(solvers, key=lambda name: THREADS in name)
    return [_row(name, figures, told[name]) for name in names]


def ways(url: str) -> dict[tuple[str, str], Config]:
    """Return the ways in which ours are run, by the parts of a row's name before and after the kind of work."""
    server: dict[str, Any] = {"worker": "http", "base_url": url, "whole": 512, "journal": "off"}
    local: dict[str, Any] = {"journal": "off", **GATES[ORDERED]}
    found: dict[tuple[str, str], dict[str, Any]] = {("ours", ", defaults"): server}
    found |= {("ours", f", {gate}"): server | settings for gate, settings in GATES.items()}
    found |= {
        ("ours in process", ""): local | {"worker": "engine"},
        ("ours, one engine in Ray", ""): local | {"worker": "ray"},
        ("ours, two engines in Ray", ""): local
        | {"worker": "ray", "engines": 2, "policies": ("affinity", "breadth-first")},
    }
    return {way: Config.model_validate(settings) for way, settings in found.items()}


def _local(name: str) -> bool:
    return "in process" in name or "Ray" in name


def _base(name: str, figures: Rounds) -> str:
    """Return the row by hand that a row is compared with."""
    kind = THREADS if THREADS in name else VOTES
    gate = next((gate for gate in GATES if name.endswith(gate)), None)
    gates = GATES if gate is None else (gate,)
    return max((f"by hand, {kind}, {each}" for each in gates), key=lambda base: figures.spread(base).median)


def _row(name: str, figures: Rounds, told: list[tuple[int, float]]) -> Row:
    base = _base(name, figures)
    solved, total = (sum(each[i] for each in told) / len(told) for i in (0, 1))
    ours = f"{figures.spread(name)} problems/s; {solved:.0f} solved; {total:,.0f} tokens a problem"
    goal = "" if "ours" not in name else "> 1" if _local(name) else "≥ 1"
    return Row(name, ours, f"{base} {figures.spread(base)}", str(figures.ratio(name, base)), goal)


def main() -> None:
    """Measure fewer puzzles, or within a time, and print a line for each row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openai_server", description=__doc__)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no round that would end later")
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    for row in asyncio.run(run(options.problems, options.rounds, options.seconds, not options.no_ray)):
        sys.stdout.write(f"{row.what}: {row.ours}; {row.baseline}; ratio {row.ratio} {row.goal}\n")


if __name__ == "__main__":
    main()
