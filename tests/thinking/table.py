"""Prints what each planner comes to on models that think and on one that does not: `python -m tests.thinking.table`.

The model is the test's server. A cell has the run's status, its tokens beside thoughts, and its thoughts. With
`--model smollm2` the table has one column, that of a real model in this process: status, tokens, and how its answer
begins.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from plait import AsyncOrchestrator, Budget, Plugin
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, run_python, search

from .server import SHAPES
from .test_thinking import Ran, run


def cell(ran: Ran, plain: Ran) -> str:
    """Return one cell: how many times the words of the model without thoughts, where they differ."""
    answer = ran.answer
    said = answer.status if answer.failure is None else f"{answer.status} ({answer.failure.kind})"
    times = ran.spoken / plain.spoken if plain.spoken else 1.0
    return f"{said}, {ran.spoken}{'' if ran is plain else f' ({times:.2f}×)'} + {ran.server.thought}"


async def real(model: str, tokens: int) -> None:
    """Print what each planner comes to on a real model, of at most so many tokens a run."""
    sys.stdout.write(f"| planner | {model} | answer |\n|---|---|---|\n")
    async with AsyncOrchestrator(
        model=model, worker="engine", slots=16, tools=[search, run_python], journal="off"
    ) as plait:
        for name in NAMES:
            task, text = ASKS.get(name, ("plain", PROMPT))
            spec = Plugin(name=name, options=OPTIONS.get(name, {}))
            answer = await plait.run(text, planner=spec, task=task, seed=7, budget=Budget(tokens=tokens))
            said = answer.status if answer.failure is None else f"{answer.status} ({answer.failure.kind})"
            begin = " ".join(str(answer.value or answer.why or "").split())[:60].replace("|", "/")
            sys.stdout.write(f"| `{name}` | {said}, {answer.usage.completion} tokens | {begin} |\n")
            sys.stdout.flush()


async def main() -> None:
    """Print the table."""
    sys.stdout.write(f"| planner | {' | '.join(SHAPES)} |\n{'|---' * (len(SHAPES) + 1)}|\n")
    for name in NAMES:
        plain = await run(name, "instruct")
        cells = [cell(plain if shape == "instruct" else await run(name, shape), plain) for shape in SHAPES]
        sys.stdout.write(f"| `{name}` | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    chosen = argparse.ArgumentParser(prog="python -m tests.thinking.table")
    chosen.add_argument("--model", help="a model in this process, such as smollm2")
    chosen.add_argument("--tokens", type=int, default=3000, help="that a run may generate, with --model")
    given = chosen.parse_args()
    asyncio.run(main() if given.model is None else real(given.model, given.tokens))
