"""Does `code-search` choose the right one of a small model's programs for HumanEval?

SmolLM2-135M-Instruct writes programs for problems of HumanEval; `code-search` chooses by the docstring's examples and
by tests that the model writes. Every program is graded by the hidden tests. What was written is kept, so that a run
that is stopped resumes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from plait.core.flow import Answerable, Context
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.client.models import folder_of
from plait.workers.tools.sandbox import Sandbox
from plait_bench.environments.data_sets import HumanEvalEnvironment
from plait_bench.tasks.data_sets import HumanEval
from plait_research.planners.code_search import CodeSearch, Searching

from .._tools.statistics import difference, mean, smallest_difference

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


async def ask(problems: int, n: int, tokens: int, draws: int, together: int) -> None:
    """Run the problems that have no row yet, `together` at a time; each row is written when its run ends."""
    KEPT.parent.mkdir(exist_ok=True)
    done = {(row["text"], row["draw"]) for row in _rows()}
    prompt: Any = {"max_tokens": tokens}
    planner = Watched(n=n, repairs=0, tests=4, answer=prompt, test=prompt, judge=prompt)
    config = Config(model=folder_of("smollm2"), worker="engine", journal="off")
    async with AsyncOrchestrator(config=config, tools=Sandbox("process").tools()) as orchestrator:
        for draw in range(draws):  # one after another: what was written is kept by the problem's text
            queue = iter([row for row in HumanEval.drawn(problems, 1) if (row[0], draw) not in done])

            async def work(draw: int = draw, queue: Iterator[tuple[str, Any]] = queue) -> None:
                for text, want in queue:
                    row = await _asked(orchestrator, planner, text, want, draw)
                    with KEPT.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row | {"n": n, "draw": draw}) + "\n")

            await asyncio.gather(*(work() for _ in range(together)))


async def _asked(orchestrator: AsyncOrchestrator, planner: Watched, text: str, want: Any, draw: int) -> dict[str, Any]:
    """Return the result of one problem."""
    seed = crc32(f"{draw} {text}".encode())  # one for all would make a draw lucky or not for many problems at once
    answer = await orchestrator.run(text, task="humaneval", planner=planner, seed=seed)
    place = HumanEvalEnvironment(text=text, sandbox="process")
    programs = [
        {"right": await place.grade(program, want), "weight": weight, "passed": passed}
        for program, weight, passed in WRITTEN.get(text, [])
    ]
    selected = await place.grade(answer.answer, want)
    return {"text": text, "programs": programs, "selected": selected, "tokens": answer.total_tokens, "seed": seed}


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.exists() else []


_PAGE = """# HumanEval by a small model

`python -m experiments humaneval --problems {problems} --samples {n} --draws {draws} --tokens {tokens}`

Python 3.12.3, vLLM 0.32.0 on one H100 beside seven other jobs.

SmolLM2-135M-Instruct (a real model of 135 million parameters) writes {n} programs for each of {problems} problems of
HumanEval, {draws} times over with other seeds; hidden tests grade. `code-search` chooses by the examples in the
docstring and by tests that the model writes. Means over the draws of a problem; intervals are of 95 %, over problems.

| | |
|---|---|
| one program is right (pass@1) | {one} |
| any of {n} is | {any} |
| the one that is selected is | {selected} |
| programs that define the function | {whole} |
| tokens a problem | {spent:,.0f} |
| the selected one is right, less one program | {gain}, paired by problem |
| the selected one is right, less any of {n} | {short}, paired by problem |

Selected in each draw: {each}.

**What {problems} problems can show**: from 3 % right, one draw shows a difference of {least:.0f}
points or more in four cases of five (McNemar's test at 5 %, answers independent).

Few are right, as is to be expected of a model of this size. What a model that knows gains from the search is a test
(`tests/planners/test_code_search.py`): what any sample knows is chosen.
"""


def page(rows: list[dict[str, Any]], tokens: int) -> str:
    """Return the page."""
    n, draws = rows[0]["n"], sorted({row["draw"] for row in rows})
    one = _by_problem(rows, lambda row: sum(each["weight"] for each in row["programs"] if each["right"]) / n)
    whole = _by_problem(rows, lambda row: sum(each["weight"] for each in row["programs"]) / n)
    some = _by_problem(rows, lambda row: float(any(each["right"] for each in row["programs"])))
    selected = _by_problem(rows, lambda row: float(row["selected"]))
    each = [[float(row["selected"]) for row in rows if row["draw"] == draw] for draw in draws]
    return _PAGE.format(
        problems=len(one), n=n, tokens=tokens, draws=len(draws), one=mean(one).percent(), any=mean(some).percent(),
        selected=mean(selected).percent(), whole=mean(whole).percent(),
        spent=sum(row["tokens"] for row in rows) / len(rows),
        gain=difference(selected, one).points(), short=difference(selected, some).points(),
        each=", ".join(f"{100 * sum(draw) / len(draw):.1f} %" for draw in each),
        least=100 * smallest_difference(len(one), 0.03),
    )  # fmt: skip


def _by_problem(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> list[float]:
    """Return the mean over the draws of each problem."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["text"], []).append(value(row))
    return [sum(each) / len(each) for each in found.values()]


def main() -> None:
    """Ask, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments humaneval", description=__doc__)
    parser.add_argument("--problems", type=int, default=164)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--draws", type=int, default=3, help="times that each problem is asked, with other seeds")
    parser.add_argument("--together", type=int, default=8, help="problems at a time")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if not given.report:
        asyncio.run(ask(given.problems, given.samples, given.tokens, given.draws, given.together))
    (FOLDER / "README.md").write_text(page(_rows(), given.tokens), encoding="utf-8")


if __name__ == "__main__":
    main()
