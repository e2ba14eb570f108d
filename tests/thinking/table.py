"""Prints what each planner comes to on models that think and on one that does not: `python -m tests.thinking.table`.

The model is the test's server. A cell has the run's status, its tokens beside thoughts, and its thoughts. With
`--model smollm2` the table has one column, that of a real model in this process: status, tokens, and how its answer or
the reason of its failure begins. Each planner's row is kept in `--kept FILE` as soon as it is there; a later call runs
only those that are missing, for at most so many `--minutes`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Budget, Plugin
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, run_python, search

from .server import SHAPES
from .test_thinking import Ran, run

AT_ONCE = 6
"""Planners that a real model works for at the same time."""


def cell(ran: Ran, plain: Ran) -> str:
    """Return one cell: how many times the words of the model without thoughts, where they differ."""
    answer = ran.answer
    said = answer.status if answer.failure is None else f"{answer.status} ({answer.failure.kind})"
    times = ran.spoken / plain.spoken if plain.spoken else 1.0
    return f"{said}, {ran.spoken}{'' if ran is plain else f' ({times:.2f}×)'} + {ran.server.thought}"


async def real(model: str, tokens: int, kept: Path, minutes: float) -> None:
    """Run each planner on a real model, with at most so many tokens a run, and print the table of all that were run."""
    done = {row["planner"] for row in read(kept)}
    until = time.monotonic() + 60 * minutes
    todo = iter([name for name in NAMES if name not in done])
    kept.parent.mkdir(parents=True, exist_ok=True)
    async with AsyncOrchestrator(
        model=model, worker="engine", slots=16, tools=[search, run_python], journal="off"
    ) as plait:

        async def some() -> None:
            for name in todo:
                if time.monotonic() > until:
                    return
                task, text = ASKS.get(name, ("plain", PROMPT))
                spec = Plugin(name=name, options=OPTIONS.get(name, {}))
                answer = await plait.run(text, planner=spec, task=task, seed=7, budget=Budget(tokens=tokens))
                failure = answer.failure
                row = {"planner": name, "status": answer.status, "failure": failure and failure.kind,
                       "message": failure and failure.message, "tokens": answer.usage.completion, "limit": tokens,
                       "answer": str(answer.value if answer.value is not None else ""), "why": answer.why}  # fmt: skip
                with kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    sys.stdout.write(f"| planner | {model} | answer, or why there is none |\n|---|---|---|\n")
    for row in sorted(read(kept), key=lambda row: row["planner"]):
        sys.stdout.write(f"{line(row)}\n")


def read(kept: Path) -> list[dict[str, Any]]:
    """The rows of a file that may not be there yet."""
    return [json.loads(text) for text in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    status = row["status"] if row["failure"] is None else f"{row['status']} ({row['failure']})"
    text = re.sub(r"\b(run )?[0-9a-f]{32}\b:? ?", "", row["answer"] or row["message"] or row["why"] or "")
    begin = " ".join(text.split())[:80].replace("|", "/")
    return f"| `{row['planner']}` | {status}, {row['tokens']} of {row['limit']} tokens | {begin} |"


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
    chosen.add_argument("--kept", type=Path, metavar="FILE", help="rows of --model (build/thinking/MODEL.jsonl)")
    chosen.add_argument("--minutes", type=float, default=60 * 24, help="with --model: begin no planner after so many")
    given = chosen.parse_args()
    if given.model is None:
        asyncio.run(main())
    else:
        there = given.kept or Path("build/thinking") / f"{Path(given.model).name}.jsonl"
        asyncio.run(real(given.model, given.tokens, there, given.minutes))
