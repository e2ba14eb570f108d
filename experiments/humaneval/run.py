"""Does `code-search` choose the right one of a small model's programs for HumanEval?

SmolLM2-135M-Instruct writes programs for problems of HumanEval; `code-search` chooses by the docstring's examples and
by tests that the model writes. Every program is graded by the hidden tests. What was written is kept, so that a run
that is stopped goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from plait.core.flow import Answerable, Context
from plait.planners.search.code_search import CodeSearch, Searching
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.client.models import folder_of
from plait.tasks.humaneval import HumanEval
from plait.workers.tools.environments.humaneval import HumanEvalEnvironment
from plait.workers.tools.sandbox import Sandbox

from .._tools.statistics import difference, mean, share, smallest_difference

__all__ = ["main", "page"]

FOLDER = Path(__file__).parent
KEPT = FOLDER / "data" / "rows.jsonl"


class Watched(CodeSearch):
    """The planner, whose candidates are looked at."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Search, and keep what was found."""
        task = cast("HumanEval", ctx.brief.task)
        search = Searching(self, ctx, question, task.entry, [(list(case.args), case.want) for case in task.public])
        try:
            return await search.answer()
        finally:
            WRITTEN[ctx.brief.request.text] = [(one.program, one.weight, one.passed) for one in search.candidates]


WRITTEN: dict[str, list[tuple[str, int, int]]] = {}


async def ask(problems: int, n: int, tokens: int) -> None:
    """Ask for the problems that are not there yet; each row is written when it is there."""
    KEPT.parent.mkdir(exist_ok=True)
    done = {row["text"] for row in _rows()}
    todo = [(text, want) for text, want in HumanEval.drawn(problems, 1) if text not in done]
    prompt: Any = {"max_tokens": tokens}
    planner = Watched(n=n, repairs=0, tests=4, answer=prompt, test=prompt, judge=prompt)
    config = Config(model=folder_of("smollm2"), worker="engine", journal="off")
    async with AsyncOrchestrator(config=config, tools=Sandbox("process").tools()) as orchestrator:
        for text, want in todo:
            seed = crc32(text.encode())  # one for all would make its draw lucky or not for many problems at once
            answer = await orchestrator.run(text, task="humaneval", planner=planner, seed=seed)
            place = HumanEvalEnvironment(text=text, sandbox="process")
            programs = [
                {"right": await place.grade(program, want), "weight": weight, "passed": passed}
                for program, weight, passed in WRITTEN.get(text, [])
            ]
            row = {
                "text": text, "n": n, "programs": programs, "selected": await place.grade(answer.answer, want),
                "tokens": answer.total_tokens, "seed": seed,
            }  # fmt: skip
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.exists() else []


_PAGE = """# HumanEval by a small model

`python -m experiments humaneval --problems {problems} --samples {n} --tokens {tokens}`

SmolLM2-135M-Instruct (a real model of 135 million parameters) writes {n} programs for each of {problems} problems of
HumanEval; hidden tests grade. `code-search` chooses by the examples in the docstring and by tests that the model
writes. Intervals are of 95 %.

| | |
|---|---|
| one program is right (pass@1) | {one} |
| any of {n} is | {any} |
| the one that is selected is | {selected} |
| programs that define the function | {whole} |
| tokens a problem | {spent:,.0f} |
| the selected one is right, less one program | {gain}, paired by problem |

**What so few problems can show**: from 3 % right, {problems} problems show a difference of {least:.0f} points or more
in four cases of five, so nothing smaller is told here. One draw of programs at one
temperature{seeds}; two more take {minutes:.0f} minutes of a core at 139 tokens a second
([throughput](../throughput/README.md)).

Few are right, as is to be expected of a model of this size. What a model that knows gains from the search is a test
(`tests/planners/test_code_search.py`): what any sample knows is chosen.
"""


def page(rows: list[dict[str, Any]], tokens: int) -> str:
    """Return the page."""
    n = rows[0]["n"]
    right = [sum(each["weight"] for each in row["programs"] if each["right"]) / n for row in rows]
    whole = [sum(each["weight"] for each in row["programs"]) / n for row in rows]
    return _PAGE.format(
        problems=len(rows), n=n, tokens=tokens, one=mean(right).percent(),
        any=share([float(any(each["right"] for each in row["programs"])) for row in rows]).percent(),
        selected=share([float(row["selected"]) for row in rows]).percent(), whole=mean(whole).percent(),
        spent=sum(row["tokens"] for row in rows) / len(rows),
        gain=difference([float(row["selected"]) for row in rows], right).points(),
        seeds="" if all("seed" in row for row in rows) else ", with the same seed for all problems",
        minutes=2 * sum(row["tokens"] for row in rows) / 139 / 60,
        least=100 * smallest_difference(len(rows), 0.03),
    )  # fmt: skip


def main() -> None:
    """Ask, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments humaneval", description=__doc__)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if not given.report:
        asyncio.run(ask(given.problems, given.samples, given.tokens))
    (FOLDER / "README.md").write_text(page(_rows(), given.tokens), encoding="utf-8")


if __name__ == "__main__":
    main()
