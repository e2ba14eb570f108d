"""Which of many programs to take, and do repairs pay? In virtual time, on functions with known mutants.

How often `code-search` chooses a right program, in virtual time, on functions with known mutants.

The proposer is a script: with probability `RIGHT` it writes the right program, else a mutant that is known to be wrong.
Tests that it writes want the wrong thing with a stated probability. So the figures say what each rule of choice makes
of programs and tests, nothing about any model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import Any

from plait.apps.common.intervals import wilson
from plait.core.events import Job
from plait.core.flow import Answerable, Context
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait_research.planners._programs import read_problem
from plait_research.planners.code_search import CodeSearch, Searching
from plait_research.planners.code_search.programs import Evidence, Rule, choose, list_passed
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

from .._tools.command import Given, command
from .._tools.functions import PUBLIC, TESTS, Function, functions, run_here, run_python
from .mutual import score_mutually

__all__ = ["ERRORS", "row_of", "run"]

RIGHT = 0.3
"""Probability that a fresh program is right."""
SAMPLES = 16
ERRORS = (0.0, 0.1, 0.2, 0.3, 0.4)
"""Probability that a test wants the wrong thing."""
BUGS = {"three shared bugs": 3, "many different bugs": 1000, "half caught": 1000}
"""How many different mutants there are of a function. Shared ones are written in the proportions 4 : 2 : 1, the first
more often than the right program."""
REPAIRS = (0.1, 0.3, 0.6)
"""Probability that a repair is right."""
RULES: tuple[Rule, ...] = ("votes", "agreement", "majority")


@dataclass(frozen=True, slots=True)
class Row:
    """One setting over all functions."""

    world: str
    error: float
    n: int
    repairs: int
    fix: float
    """Probability that a repair is right."""
    any: float
    """Share of functions with a right program among those written."""
    selected: dict[str, float]
    """Share whose chosen program is right, by rule; `mutual`: by the mutual check of programs and tests; `random`: of
    one of those that pass the public cases."""
    tokens: float


class _Measured(CodeSearch):
    """Keeps its last search."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        entry, public = read_problem(ctx.brief.task, "code-search")
        _LAST[:] = [Searching(self, ctx, question, entry, public)]
        return await _LAST[0].answer()


_LAST: list[Searching] = []


def _answering(function: Function, world: str, error: float, fix: float, seed: int) -> Callable[[Job, Random], Result]:
    """Return the script for one function."""
    bugs, caught = BUGS[world], world == "half caught"
    wrong = function.wrong[: min(bugs, len(function.caught))] if caught else function.wrong[:bugs]
    wrong += function.caught[: len(wrong)] if caught else ()
    shares = (4, 2, 1) if bugs == 3 else (1,) * len(wrong)
    tested = [list(each) for each in function.inputs[PUBLIC : PUBLIC + TESTS]]

    def wanted(items: Sequence[int], random: Random) -> Any:
        right = function.value(function.right, items)
        others = [each for each in (function.value(one, items) for one in wrong) if each not in (right, None)]
        return json.loads(random.choice(others) if others and random.random() < error else right)

    def answer(job: Job, _: Random) -> Result:
        if not isinstance(job.op, ModelCall):
            return Result(value=run_here(job.op.args["code"]))  # type: ignore[union-attr,index,arg-type]
        name = job.step.rpartition("/")[2].rpartition(":")[2]
        random = Random(f"{seed}/{function.right}/{name}")
        usage = Usage(completion=60)
        if name.startswith("tests"):
            lines = [json.dumps({"args": [each], "want": wanted(each, random)}) for each in tested]
            return Result(value="\n".join(lines), usage=usage)
        if name.startswith("difference"):
            prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
            a, b = re.findall(r"```python\n(.*?)\n```", prompt, re.DOTALL)[:2]
            for items in function.inputs:
                if function.value(a, items) != function.value(b, items):
                    return Result(value=json.dumps({"args": [items], "want": wanted(items, random)}), usage=usage)
            return Result(value="", usage=usage)
        good = random.random() < (fix if name.startswith("repair") else RIGHT)
        return Result(
            value=f"```python\n{function.right if good else random.choices(wrong, shares)[0]}\n```", usage=usage
        )

    return answer


def row_of(world: str, error: float, n: int, repairs: int, fix: float, given: Sequence[Function], seed: int) -> Row:
    """Run one setting on the functions."""
    right: dict[str, list[float]] = {each: [] for each in (*RULES, "mutual", "random")}
    found: list[float] = []
    tokens: list[float] = []
    for number, function in enumerate(given):
        public = [{"args": [each], "want": json.loads(function.value(function.right, each))}
                  for each in function.inputs[:PUBLIC]]  # fmt: skip
        text = json.dumps({"prompt": "Write f.", "entry": "f", "public": public})
        planner = _Measured(n=n, repairs=repairs, tests=TESTS)
        done = simulate(
            Request(text=text, task=Plugin(name="code"), seed=number),
            planner=planner,
            hosts=[Host("host", slots=16)],
            outcome=_answering(function, world, error, fix, seed + number),
            tools=[run_python.spec],
            seed=number,
        )
        assert done.result is not None, done.failure
        search = _LAST[0]
        pool = [candidate for candidate, _ in search.evidence]
        marks = [function.is_right(each.program) for each in pool]
        for rule in RULES:
            picked = marks[choose([each for _, each in search.evidence], rule)] if len(pool) > 1 else marks[0]
            right[rule].append(float(picked))
        trusts = (
            score_mutually([list_passed(each, search.tests) for each in pool])[0] if search.tests else [1.0] * len(pool)
        )
        by_trust = [
            Evidence(round(trust, 6), each.cluster, each.length)
            for (_, each), trust in zip(search.evidence, trusts, strict=True)
        ]
        right["mutual"].append(float(marks[choose(by_trust)]))
        weights = [each.weight for each in pool]
        right["random"].append(sum(w for w, mark in zip(weights, marks, strict=True) if mark) / sum(weights))
        found.append(float(any(function.is_right(each.program) for each in search.candidates)))
        tokens.append(done.usage.completion)
    selected = {name: fmean(each) for name, each in right.items()}
    return Row(world, error, n, repairs, fix, fmean(found), selected, fmean(tokens))


def settings() -> list[tuple[str, float, int, int, float]]:
    """World, error, samples, repairs, probability that a repair is right."""
    first = [(world, error, SAMPLES, 0, 0.0) for world in BUGS if world != "half caught" for error in ERRORS]
    again = [("half caught", 0.2, n, SAMPLES // n - 1, fix) for n in (8, 4) for fix in REPAIRS]
    return [*first, *again, *(("half caught", 0.2, n, 0, 0.0) for n in (16, 8, 4))]


def run(given: Given) -> str:
    """Run what is missing, write `data/code_search.json` after every setting and then the page; return the page."""
    count, seed = given.problems, given.common.load().seed or 0
    kept = given.out / "data" / "code_search.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, list[dict[str, Any]]] = json.loads(kept.read_text()) if kept.is_file() else {}
    key = f"{count} functions, seed {seed}"
    rows = [Row(**each) for each in known.get(key, [])]
    done = {(row.world, row.error, row.n, row.repairs, row.fix) for row in rows}
    missing = [] if given.report else [each for each in settings() if each not in done]
    asked = functions(count, seed) if missing else []
    for setting in missing:
        rows.append(row_of(*setting, asked, seed))
        known[key] = [asdict(row) for row in rows]
        kept.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return given.write(page_of(rows, count, seed))


def page_of(rows: Sequence[Row], count: int, seed: int) -> str:
    """Return the tables as Markdown."""
    shown_rules = ("random", "majority", "agreement", "mutual", "votes")
    lines = [
        "# Which of many programs: code search on functions with known mutants",
        "",
        f"A scripted proposer: a program is right with probability {RIGHT}, else a mutant (one or two changes) that "
        "passes "
        f"the public case and is wrong elsewhere. {count} small functions, {PUBLIC} public case, {TESTS} tests written "
        "without seeing the programs, and some want what a wrong program returns, and a test for each of three "
        "pairs of behaviours. Hidden inputs say what is right; no search sees them. 95 % intervals (Wilson; of "
        "`random`, which is a mean of shares, they are too wide). `random`: one of the programs that pass the public "
        "case. `mutual`: that which the mutual check of programs and tests trusts most. `three shared bugs`: "
        "wrong programs are one of three, the commonest more common than the right one.",
        "",
        f"`python -m experiments code_search --problems {count} --seed {seed}`",
        "",
        f"| programs | wrong tests | any of n | {' | '.join(shown_rules)} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.world != "half caught":
            shown = [_share(row.selected[each], count) for each in shown_rules]
            lines.append(f"| {row.world} | {row.error:.0%} | {_share(row.any, count)} | {' | '.join(shown)} |")
    lines += [
        "",
        "## Repair or fresh samples",
        "",
        "Half of the wrong programs fail the public case, and only those are repaired. 20 % of the tests wrong, votes.",
        "",
    ]
    lines += [
        "| samples | repairs each | a repair is right | any of n | selected | tokens |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.world == "half caught":
            fix = f"{row.fix:.0%}" if row.repairs else ""
            shares = f"{_share(row.any, count)} | {_share(row.selected['votes'], count)}"
            lines.append(f"| {row.n} | {row.repairs} | {fix} | {shares} | {row.tokens:.0f} |")
    return "\n".join([*lines, ""])


def _share(value: float, count: int) -> str:
    low, high = wilson(round(value * count), count)
    return f"{value:.0%} ({100 * low:.0f}–{100 * high:.0f})"


def main() -> None:
    """Run it in virtual time."""
    command("code_search", run, problems=200)
