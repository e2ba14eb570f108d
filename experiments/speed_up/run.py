"""Does a search with execution feedback find faster programs than as many fresh samples?

The proposer is a script with known odds. A function has four slow places. Asked afresh, it writes each place well with
probability `fresh`, independently; shown a parent, it mends one place that is slow with probability `step`, breaks the
program with probability `breaks`, and else changes nothing that counts. Every program is run: right or wrong against an
exact reference, and its operations are counted. `evolve` and fresh samples get as many programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait.core.tools.tool import tool
from plait.runtime.client.client import AsyncOrchestrator
from plait_research.planners.evolve import Evolve

from .._tools.statistics import mean
from .._tools.worker import InProcess, text_of

__all__ = ["SETTINGS", "main", "page", "run", "written"]

FOLDER = Path(__file__).parent
PROBLEM = json.dumps({"prompt": "Return how often each number below k stands in a list.", "entry": "counts"})
PLACES = 4
SIZE, BELOW = 24, 16
FRESH, BREAKS = 0.25, 0.2
SETTINGS = (0.1, 0.25, 0.5)
"""How likely a proposal with feedback mends a place."""


def written(fast: str, right: bool = True) -> str:
    """Return a program; `fast` says of each of its four places whether it is written well (1) or not (0)."""
    begin = "seen = set(items)" if fast[0] == "1" else "seen = [x for x in items if items.count(x)]"
    count = "by[x] = by.get(x, 0) + 1" if fast[1] == "1" else "by = {y: items.count(y) for y in items}"
    out = (
        "by.get(n, 0) if n in seen else 0"
        if fast[2] == "1"
        else "len([x for x in items if x == n]) if n in seen else 0"
    )
    again = "" if fast[3] == "1" else "\n    for _ in range(8):\n        sorted(items)"
    wrong = "" if right else " + (n == 3)"
    return (
        f"def counts(items, k):\n    {begin}\n    by = {{}}\n    for x in items:\n        {count}{again}\n"
        f"    return [({out}){wrong} for n in range(k)]"
    )


class Proposer(InProcess):
    """Writes programs by known odds; what it draws depends on the seed and the call alone."""

    name = "proposer"

    def __init__(self, seed: int, step: float) -> None:
        self._seed, self._step, self._calls = seed, step, 0

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        self._calls += 1
        random = Random(f"{self._seed} {self._calls}")
        parent = re.search(r"Improve this program:.*?```python\n(.*?)```", text_of(think), re.DOTALL)
        yield Result(value=f"```python\n{self._said(random, parent)}\n```", usage=Usage(completion=60), finish="stop")

    def _said(self, random: Random, parent: re.Match[str] | None) -> str:
        if parent is None:
            return written("".join(str(int(random.random() < FRESH)) for _ in range(PLACES)), random.random() > BREAKS)
        slow = [place for place in range(PLACES) if not _is_fast(parent[1], place)]
        fast = ["0" if place in slow else "1" for place in range(PLACES)]
        if slow and random.random() < self._step:
            fast[random.choice(slow)] = "1"
        return written("".join(fast), random.random() > BREAKS)


def _is_fast(program: str, place: int) -> bool:
    return ("seen = set(items)", "by[x] =", "by.get(n, 0) if", "return [(")[place] in program and not (
        place == PLACES - 1 and "range(8)" in program
    )


class _Counted(int):
    """A number that counts how often it is compared or hashed."""

    operations = 0

    def __eq__(self, other: object) -> bool:
        _Counted.operations += 1
        return int(self) == other

    def __lt__(self, other: Any) -> bool:
        _Counted.operations += 1
        return int(self) < int(other)

    def __hash__(self) -> int:
        _Counted.operations += 1
        return hash(int(self))


def measured(program: str) -> dict[str, Any]:
    """Run a program; return whether it is right, and 1,000 / its operations."""
    random = Random(5)
    items = [_Counted(random.randrange(BELOW)) for _ in range(SIZE)]
    space: dict[str, Any] = {}
    exec(program, space)  # noqa: S102 - written by the script above
    _Counted.operations = 0
    made = space["counts"](items, BELOW)
    spent = max(1, _Counted.operations)
    plain = [int(item) for item in items]
    right = made == [plain.count(number) for number in range(BELOW)]
    return {"right": int(right), "score": 1000 / spent if right else 0.0, "failure": "" if right else "It is wrong."}


async def run(problems: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each setting and seed: operations of the best right program of each way."""

    @tool
    def evaluate(program: str, stage: int) -> dict[str, Any]:
        """Judge a program."""
        return measured(program)

    rows: list[dict[str, Any]] = []
    for step in SETTINGS:
        for seed in range(problems):
            programs: dict[str, float] = {}
            for way, planner in (
                ("evolve", Evolve(n=4, rounds=rounds, max_prompt_items=0)),
                ("fresh", Evolve(n=4 * rounds, rounds=1, max_prompt_items=0)),
            ):
                async with AsyncOrchestrator(
                    workers=[Proposer(seed, step)], tools=[evaluate], journal="off", seed=seed
                ) as orchestrator:
                    answer = await orchestrator.run(PROBLEM, task="code", planner=planner)
                programs[way] = float(measured(str(answer.answer))["score"])
            rows.append({"step": step, "seed": seed, **{way: round(1000 / score) for way, score in programs.items()}})
    return rows


_HEAD = """# A faster program: feedback beside fresh samples

`python -m experiments speed_up --problems {problems} --rounds {rounds}`

A slow function with four slow places and an exact reference. The proposer is a script with known odds: asked afresh it
writes each place well with probability {fresh:.0%} (so all four in {all:.1%} of samples); shown its parent and what
became of it, it mends one place with the probability of the first column. {breaks:.0%} of all it writes is wrong.
`evolve` (4 islands) and fresh samples write {programs} programs each; the best right one counts. What is counted are
comparisons and hashes of the list's numbers, so no clock decides.

| a place is repaired | operations: `evolve` | fresh | fresh ÷ evolve (mean and 95 %) | evolve better | equal |
|---|---|---|---|---|---|
"""
_FOOT = """
The first program has {slowest:,} operations, the best one {fastest:,}. This shows the search and not a model: with
these odds, feedback adds up where luck does not. Where a proposal mends a place in one of ten cases there is little to
add up: there the ratio's interval holds 1, and fresh samples win about as many pairs.
"""


def page(data: dict[str, Any]) -> str:
    """Return the page."""
    programs = 4 * data["rounds"]
    text = _HEAD.format(
        problems=data["problems"],
        rounds=data["rounds"],
        fresh=FRESH,
        all=FRESH**PLACES,
        breaks=BREAKS,
        programs=programs,
    )
    for step in SETTINGS:
        rows = [row for row in data["rows"] if row["step"] == step]
        ratio = mean([row["fresh"] / row["evolve"] for row in rows]).number()
        better = sum(row["evolve"] < row["fresh"] for row in rows)
        equal = sum(row["evolve"] == row["fresh"] for row in rows)
        means = [sum(row[way] for row in rows) / len(rows) for way in ("evolve", "fresh")]
        cells = (
            f"{step:.0%}",
            *(f"{operations:,.0f}" for operations in means),
            ratio,
            f"{better} of {len(rows)}",
            f"{equal}",
        )
        text += f"| {' | '.join(cells)} |\n"
    ends = [round(1000 / measured(written(fast))["score"]) for fast in ("0" * PLACES, "1" * PLACES)]
    return text + _FOOT.format(slowest=ends[0], fastest=ends[1])


def main() -> None:
    """Run it; no engine is needed."""
    parser = argparse.ArgumentParser(prog="python -m experiments speed_up", description=__doc__)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    kept = FOLDER / "data" / "rows.json"
    if not given.report:
        rows = asyncio.run(run(given.problems, given.rounds))
        kept.write_text(
            json.dumps({"problems": given.problems, "rounds": given.rounds, "rows": rows}), encoding="utf-8"
        )
    (FOLDER / "README.md").write_text(page(json.loads(kept.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
