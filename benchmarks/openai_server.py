"""Against one OpenAI server: votes with early stop and spawned threads, ours and written by hand in asyncio.

A hundred puzzles, 32 at the same time, on vLLM's own server with the bundled model; every contender in turn in each
round, and other seeds in the next. By hand and ours draw the same samples. Ours go out `breadth-first`, 64 at a time
(order and number were chosen on other puzzles); `all at once` sends every branch as soon as it can run, as by hand.
`in process` is the same job on our engine without a server, which stands still meanwhile; `one engine in Ray` the same
in an actor, `two engines in Ray` on two. All have one compute thread each; the server's engine keeps two cores busy
with it, one in each of its two processes, and ours one. Tokens a problem are the server's or engine's own counter;
those *after solved* were generated for a problem that had its answer already. Ours are asked for in one piece, so that
they are known only where every token is streamed, as by hand (`counted`).
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Config
from plait.apps.common.problems import Problem, draw, is_right

from . import by_hand
from .measure import Row, interleave
from .server import served

PROBLEMS, IN_FLIGHT, ROUNDS, SEED = 100, 32, 3, 23
OURS: dict[str, Any] = {
    "votes of 8": {"planner": "sample:n=8,temperature=1,max_tokens=512,early=true", "merge": "best-of"},
    "threads of width 8": {"planner": "threads:width=8"},
}
Solve = Callable[[Problem, int], Awaitable[tuple[bool, int]]]


async def _all(solve: Solve, problems: list[Problem], first: int) -> tuple[float, int, int]:
    """Solve with seeds from `first` on; return problems a second, how many were solved, and the tokens seen when they
    were."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(i: int, problem: Problem) -> tuple[bool, int]:
        async with room:
            return await solve(problem, first + i)

    start = time.perf_counter()
    found = await asyncio.gather(*(one(i, problem) for i, problem in enumerate(problems)))
    rate = len(problems) / (time.perf_counter() - start)
    return rate, sum(solved for solved, _ in found), sum(seen for _, seen in found)


def _ours(orchestrator: AsyncOrchestrator, name: str) -> Solve:
    async def solve(problem: Problem, seed: int) -> tuple[bool, int]:
        answer = await orchestrator.run(problem.text, task="countdown", seed=seed, **OURS[name])
        return is_right(problem, answer.answer), answer.total_tokens

    return solve


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    from openai import AsyncOpenAI

    problems = draw(PROBLEMS, SEED)
    told: dict[str, list[tuple[int, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(served(Path(folder) / "server.log"))
            client = await stack.enter_async_context(AsyncOpenAI(base_url=server.url, api_key="none", timeout=300))
            asks = client.completions.create
            solvers: dict[str, Solve] = {
                "by hand, plain n=8": lambda p, s: by_hand.plain_votes(asks, p, s),
                "by hand, votes of 8, early stop": lambda p, s: by_hand.early_votes(asks, p, s),
                "by hand, spawn and join": lambda p, s: by_hand.spawn_join(asks, p, s),
            }
            for way, config in _ways(server.url).items():
                orchestrator = await stack.enter_async_context(AsyncOrchestrator(config=config))
                for kind in OURS:
                    solvers[f"{way[0]}, {kind}{way[1]}"] = _ours(orchestrator, kind)

            def contender(name: str, solve: Solve) -> Callable[[], Awaitable[float]]:
                async def measured() -> float:
                    before, number = await asyncio.to_thread(server.generated), len(told.setdefault(name, []))
                    with server.stopped() if _local(name) else contextlib.nullcontext():
                        rate, solved, seen = await _all(solve, problems, number * PROBLEMS)
                    await asyncio.sleep(0.3)  # the last aborts are on their way
                    total = await asyncio.to_thread(server.generated) - before or seen
                    told[name].append((solved, total / PROBLEMS, max(0, total - seen) / PROBLEMS))
                    return rate

                return measured

            figures = await interleave({k: contender(k, v) for k, v in solvers.items()}, ROUNDS, warmup=0)
    names = sorted(solvers, key=_votes, reverse=True)
    return [_row(name, figures, told[name][-ROUNDS:]) for name in names]


def _ways(url: str) -> dict[tuple[str, str], Config]:
    """Return the ways in which ours are run, by what a row's name has before and after the kind of work."""
    ordered = {"slots": 64, "policies": ("breadth-first",), "journal": "off"}

    def with_(**settings: Any) -> Config:
        return Config.model_validate(ordered | settings)

    server: dict[str, Any] = {"worker": "http", "base_url": url}
    return {
        ("ours", ""): with_(**server),
        ("ours", ", all at once"): with_(**server, slots=256, policies=()),
        ("ours", ", counted"): with_(**server, whole=0),
        ("ours in process", ""): with_(worker="engine"),
        ("ours, one engine in Ray", ""): with_(worker="ray"),
        ("ours, two engines in Ray", ""): with_(worker="ray", engines=2, policies=("affinity", "breadth-first")),
    }


def _local(name: str) -> bool:
    return "in process" in name or "Ray" in name


def _votes(name: str) -> bool:
    return "votes" in name or "n=8" in name


def _row(name: str, figures: Any, told: list[tuple[int, float, float]]) -> Row:
    base = "by hand, votes of 8, early stop" if _votes(name) else "by hand, spawn and join"
    solved = sum(each[0] for each in told) / len(told)
    total, after = (sum(each[i] for each in told) / len(told) for i in (1, 2))
    ours = f"{figures.spread(name)} problems/s; {solved:.0f} solved; {total:,.0f} tokens a problem"
    if "ours" not in name or "counted" in name:
        ours += f", {after:,.0f} after solved"
    goal = "> 1" if _local(name) else "≥ 1" if "ours" in name and "counted" not in name else ""
    return Row(name, ours, f"{base} {figures.spread(base)}", str(figures.ratio(name, base)), goal)
