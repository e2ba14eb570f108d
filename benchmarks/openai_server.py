"""Against one OpenAI server: votes with early stop and spawned threads, ours and written by hand in asyncio.

A hundred puzzles, 32 at the same time, on vLLM's own server with the bundled model; every contender in turn in each
round, and other seeds in the next. By hand and ours draw the same samples. Ours go out `breadth-first`, 128 at a time;
`all at once` sends every branch as soon as it can run, as by hand. `in process` is the same job on our engine without a
server, on the same cores while the server idles, and `two engines in Ray` on two of them. Tokens a problem are the
server's or engine's own counter; those *after solved* were generated for a problem that had its answer already. Ours
are asked for in one piece, so that they are known only where every token is streamed, as by hand (`counted`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from orchestrator import AsyncOrchestrator, Config
from orchestrator.apps.problems import Problem, draw, is_right

from . import by_hand
from .measure import Row, interleave
from .server import served

PROBLEMS, IN_FLIGHT, ROUNDS = 100, 32, 2
OURS: dict[str, Any] = {
    "votes": {"planner": "sample:n=8,temperature=1,max_tokens=512,early=true", "merge": "best-of"},
    "threads": {"planner": "threads:width=8"},
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

    problems = draw(PROBLEMS, 17)
    told: dict[str, list[tuple[int, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder) / "server.log") as (url, generated):
            client = AsyncOpenAI(base_url=url, api_key="none", timeout=300)
            ordered: dict[str, Any] = {"slots": 128, "policies": ("breadth-first",), "journal": "off"}
            http = Config(worker="http", base_url=url, **ordered)
            inside = Config(worker="engine", **ordered)
            split = Config(
                worker="ray", engines=2, **ordered | {"slots": 64, "policies": ("affinity", "breadth-first")}
            )
            async with (
                AsyncOrchestrator(config=http) as remote,
                AsyncOrchestrator(config=http.model_copy(update={"whole": 0})) as counted,
                AsyncOrchestrator(config=http.model_copy(update={"slots": 256, "policies": ()})) as unordered,
                AsyncOrchestrator(config=inside) as local,
                AsyncOrchestrator(config=split) as pair,
            ):
                asks = client.completions.create
                solvers: dict[str, Solve] = {
                    "by hand, plain n=8": lambda p, s: by_hand.plain_votes(asks, p, s),
                    "by hand, votes of 8, early stop": lambda p, s: by_hand.early_votes(asks, p, s),
                    "ours, votes of 8, early stop": _ours(remote, "votes"),
                    "ours, votes of 8, all at once": _ours(unordered, "votes"),
                    "ours, votes of 8, counted": _ours(counted, "votes"),
                    "ours in process, votes of 8": _ours(local, "votes"),
                    "ours, two engines in Ray, votes of 8": _ours(pair, "votes"),
                    "by hand, spawn and join": lambda p, s: by_hand.spawn_join(asks, p, s),
                    "ours, threads of width 8": _ours(remote, "threads"),
                    "ours, threads of width 8, all at once": _ours(unordered, "threads"),
                    "ours, threads of width 8, counted": _ours(counted, "threads"),
                    "ours in process, threads": _ours(local, "threads"),
                    "ours, two engines in Ray, threads": _ours(pair, "threads"),
                }

                def contender(name: str, solve: Solve) -> Callable[[], Awaitable[float]]:
                    async def measured() -> float:
                        before, number = await asyncio.to_thread(generated), len(told.setdefault(name, []))
                        rate, solved, seen = await _all(solve, problems, number * PROBLEMS)
                        await asyncio.sleep(0.3)  # the last aborts are on their way
                        total = await asyncio.to_thread(generated) - before or seen
                        told[name].append((solved, total / PROBLEMS, max(0, total - seen) / PROBLEMS))
                        return rate

                    return measured

                figures = await interleave({k: contender(k, v) for k, v in solvers.items()}, ROUNDS, warmup=0)
            await client.close()
    return [_row(name, figures, told[name][-ROUNDS:]) for name in solvers]


def _row(name: str, figures: Any, told: list[tuple[int, float, float]]) -> Row:
    votes = "vote" in name or "n=8" in name
    base = "by hand, votes of 8, early stop" if votes else "by hand, spawn and join"
    solved = sum(each[0] for each in told) / len(told)
    total, after = (sum(each[i] for each in told) / len(told) for i in (1, 2))
    ours = f"{figures.spread(name)} problems/s; {solved:.0f} solved; {total:,.0f} tokens a problem"
    if "ours" not in name or "counted" in name:
        ours += f", {after:,.0f} after solved"
    local = "in process" in name or "Ray" in name
    goal = "> 1" if local else "≥ 1" if "ours" in name and "counted" not in name else ""
    return Row(name, ours, f"{base} {figures.spread(base)}", str(figures.ratio(name, base)), goal)
