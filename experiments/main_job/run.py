"""What does each planner solve of 300 held-out Countdown problems, and for how many tokens?

The main job: 300 held-out Countdown problems by each planner, on one engine in a Ray actor, 32 in flight.

The baseline is one line of reasoning (`single`). Solved means checked by exact arithmetic, all four numbers used once.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import NamedTuple

from plait import Answer, AsyncOrchestrator
from plait.apps.common.intervals import wilson
from plait_bench.countdown import CountdownProblem, draw, is_right

from .._tools.measure import Row

PROBLEMS, IN_FLIGHT, SEED = 300, 32, 7
WAYS: dict[str, tuple[str, list[str]]] = {
    "single": ("single", []),
    "sample, 8, verifier": ("sample:n=8,merge=best-of", []),
    "the same, stopped when one is right": ("sample:n=8,merge=best-of", ["consensus"]),
    "threads, a verified claim ends it": ("threads", []),
    "threads, the parent continues": ("threads:stop_on_verified=false", []),
    "threads, no early stop": ("threads:stop_on_verified=false,early=false", []),
}
"""Planner and policies of each row."""


class Outcome(NamedTuple):
    """What one way came to over all problems."""

    answers: list[Answer]
    solved: int
    seconds: float

    def mean(self, field: str) -> float:
        """Return the mean of a field of the answers."""
        return statistics.fmean(getattr(answer, field) for answer in self.answers)


async def solve(
    orchestrator: AsyncOrchestrator, problems: list[CountdownProblem], way: tuple[str, list[str]]
) -> Outcome:
    """Solve all problems one way."""
    gate = asyncio.Semaphore(IN_FLIGHT)
    planner, policies = way

    async def one(problem: CountdownProblem) -> Answer:
        async with gate:
            return await orchestrator.run(problem.text, task="countdown", planner=planner, policies=policies)

    start = time.perf_counter()
    answers = await asyncio.gather(*(one(problem) for problem in problems))
    seconds = time.perf_counter() - start
    solved = sum(is_right(problem, answer.answer) for problem, answer in zip(problems, answers, strict=True))
    return Outcome(list(answers), solved, seconds)


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    problems = draw(PROBLEMS, SEED)
    async with AsyncOrchestrator("countdown", worker="ray") as orchestrator:
        await solve(orchestrator, problems[:IN_FLIGHT], WAYS["threads, no early stop"])  # warm-up
        outcomes = {name: await solve(orchestrator, problems, way) for name, way in WAYS.items()}
    base = outcomes["single"]
    return [_row(name, outcome, base) for name, outcome in outcomes.items()]


def _row(name: str, outcome: Outcome, base: Outcome) -> Row:
    low, high = (round(100 * each, 1) for each in wilson(outcome.solved, len(outcome.answers)))
    solved = 100 * outcome.solved / len(outcome.answers)
    path, total = outcome.mean("critical_path_tokens"), outcome.mean("total_tokens")
    prompt = sum(answer.usage.prompt for answer in outcome.answers)
    cached = sum(answer.usage.cached for answer in outcome.answers)
    ours = f"solved {solved:.1f} % ({low}–{high}); {path:.0f} critical, {total:.0f} total tokens; "
    ours += f"{100 * cached / prompt:.0f} % of prompt tokens cached; {len(outcome.answers) / outcome.seconds:.1f}/s"
    path_ratio = path / base.mean("critical_path_tokens")
    ratio = f"critical path {path_ratio:.2f}, seconds {outcome.seconds / base.seconds:.2f}"
    return Row(name, ours, "single", ratio, "threads ≥ 85 %, 30 above single" if name.startswith("threads") else "")
