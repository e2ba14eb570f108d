"""Do lines, tests judged by the source program, and hot lines in the prompt find more than plain samples?

    python -m experiments program_search

A script writes the programs, and a function judges them in place of a compiler, so no load of the machine changes a
row. Programs by lines: eight lines; what a line's candidate is (right, refused by the compiler, or wrong) is drawn by
known odds. Translations: a program is right, or has one of twelve bugs that some inputs show. Profiles: a program has
six slow parts, and a step makes one of them fast. The searches are the planners `code-search` and `evolve` themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait.core.tools.tool import Tool, tool
from plait.runtime.client.client import AsyncOrchestrator
from plait_research.planners.code_search import CodeSearch
from plait_research.planners.evolve import Evolve

from .._tools.statistics import difference, mean, ratio, share, verdict
from .._tools.worker import InProcess, text_of

__all__ = ["main", "measure", "page"]

PAGE = Path(__file__).with_name("README.md")
KEPT = PAGE.parent / "data" / "rows.jsonl"
LINES, SAMPLES, BUDGET = 8, 8, 64
MISPLACED = 0.15
"""How often the compiler names another line than the faulty one."""
RIGHT, BUGS, INPUTS, SHOWN = 0.3, 12, 8, 0.35
"""Chance of a right translation; bugs; inputs that a tester writes; chance that an input shows a bug."""
MISTAKEN = 0.2
"""How often a tester writes a wrong result."""
PARTS, STEPS, MENDS = 6, 4, 0.8
"""Slow parts of a program; programs after the first; how often a proposer that sees the hottest line mends it."""
Write = Callable[[str, Random], str]
Judge = Callable[[str, list[str], str], dict[str, Any]]


class Script(InProcess):
    """Writes what a function makes of the prompt; what it draws depends on the seed and the call alone."""

    name = "script"

    def __init__(self, seed: str, write: Write) -> None:
        self._seed, self._write, self._calls = seed, write, 0

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        self._calls += 1
        text = self._write(text_of(job.op), Random(f"{self._seed} {self._calls}"))
        yield Result(value=text, usage=Usage(completion=20), finish="stop")


def _runner(judge: Judge) -> Tool[..., Any]:
    @tool
    def run_program(code: str, language: str, inputs: list[str], check: str = "", repeats: int = 0) -> dict[str, Any]:
        """Judge a program."""
        return {"refused": "", "outcomes": [], "seconds": [], **judge(code, inputs, check)}

    return run_program


async def _run(problem: dict[str, Any], planner: Any, script: Script, judge: Judge, seed: int) -> str:
    asked = {"prompt": "Write the program.", "language": "cpp", "public": [{"stdin": "0", "stdout": "r0"}], **problem}
    async with AsyncOrchestrator(workers=[script], tools=[_runner(judge)], journal="off", seed=seed) as it:
        return str((await it.run(json.dumps(asked), task="programs", planner=planner)).answer or "")


def _fenced(lines: Sequence[str]) -> str:
    return "```cpp\n" + "\n".join(lines) + "\n```"


def _outcomes(outputs: Sequence[str], report: str = "") -> list[dict[str, Any]]:
    return [{"code": 0, "stdout": output, "stderr": report} for output in outputs]


# --- lines -----------------------------------------------------------------------------------------------------------


def _line(number: int, odds: Sequence[float], random: Random) -> str:
    """Return a candidate of a line: right (`r`), refused (`x`) or wrong (`w`), of three kinds each."""
    kind = "r" if random.random() < odds[number] else random.choice("xw") + str(random.randrange(3))
    return f"{kind}_{number}();"


async def by_lines(seed: int) -> dict[str, Any]:
    """Return for each way whether it finds the program."""
    world = Random(f"lines {seed}")
    odds = [world.uniform(0.35, 0.85) for _ in range(LINES)]

    def judge(code: str, inputs: list[str], check: str, names_lines: bool = True) -> dict[str, Any]:
        kinds = re.findall(r"^\s*([rxw])\d?_\d+\(\);", code, re.MULTILINE)
        if "x" in kinds:
            candidate = code.split("\n")[kinds.index("x") + 1].strip()
            other = Random(f"{seed} {candidate}")
            at = other.randrange(LINES) if other.random() < MISPLACED else kinds.index("x")
            return {"refused": f"main.cpp:{at + 2}:1: error: bad" if names_lines else "ld: bad"}
        return {"outcomes": _outcomes(["r0" if set(kinds) == {"r"} else "wrong"] * len(inputs))}

    def blind(code: str, inputs: list[str], check: str) -> dict[str, Any]:
        return judge(code, inputs, check, names_lines=False)

    def write(prompt: str, random: Random) -> str:
        asked = re.findall(r"Write line (\d+) alone", prompt)
        if asked:
            return _line(int(asked[-1]) - 2, odds, random)
        return _fenced(["int main() {", *(_line(number, odds, random) for number in range(LINES)), "}"])

    lines = [{"code": "int main() {"}, *({"text": f"line {number}"} for number in range(LINES)), {"code": "}"}]
    ways: dict[str, tuple[dict[str, Any], Any, Judge]] = {
        "exclude": ({"lines": lines}, CodeSearch(n=SAMPLES, rounds=BUDGET), judge),
        "penalty 10": ({"lines": lines}, CodeSearch(n=SAMPLES, rounds=BUDGET, penalty=10), judge),
        "penalty 1": ({"lines": lines}, CodeSearch(n=SAMPLES, rounds=BUDGET, penalty=1), judge),
        "no blame": ({"lines": lines}, CodeSearch(n=SAMPLES, rounds=BUDGET), blind),
        "samples, equal lines": ({}, CodeSearch(n=SAMPLES, repairs=0, tests=0), judge),
        "samples, equal calls": ({}, CodeSearch(n=SAMPLES * LINES, repairs=0, tests=0), judge),
    }
    found: dict[str, Any] = {"table": "lines", "seed": seed}
    for way, (problem, planner, judged) in ways.items():
        answer = await _run(problem, planner, Script(f"{seed} {way[:7]}", write), judged, seed)
        found[way] = len(re.findall(r"^\s*r_\d+\(\);", answer, re.MULTILINE)) == LINES
    return found


# --- translations ----------------------------------------------------------------------------------------------------


async def by_source(seed: int) -> dict[str, Any]:
    """Return for each way whether its translation is right."""
    source = {"language": "c", "code": "int main() { /* source */ }"}

    def output(code: str, text: str) -> str:
        bug = re.search(r"bug (\d+)", code)
        shown = bug is not None and Random(f"{seed} {bug[1]} {text}").random() < SHOWN
        return f"bug {bug[1]}" if bug is not None and shown else f"r{text}"

    def judge(code: str, inputs: list[str], check: str) -> dict[str, Any]:
        return {"outcomes": _outcomes([output(code, text) for text in inputs])}

    def write(prompt: str, random: Random) -> str:
        if "Do not solve it" in prompt:
            texts = random.sample(range(1, 1000), INPUTS)
            wants = [f"{'bug' if random.random() < MISTAKEN else 'r'}{text}" for text in texts]
            cases = zip(texts, wants, strict=True)
            return "\n".join(json.dumps({"args": [str(text)], "want": want}) for text, want in cases)
        bug = "" if random.random() < RIGHT else f"/* bug {random.randrange(BUGS)} */ "
        return _fenced([f"int main() {{ {bug}}}"])

    ways: dict[str, tuple[dict[str, Any], Any]] = {
        "source judges": ({"source": source}, CodeSearch(n=8, repairs=0, tests=INPUTS)),
        "model judges": ({}, CodeSearch(n=8, repairs=0, tests=INPUTS, pairs=0)),
        "samples": ({}, CodeSearch(n=9, repairs=0, tests=0, pairs=0, criterion="majority")),
    }
    found: dict[str, Any] = {"table": "source", "seed": seed}
    for way, (problem, planner) in ways.items():
        answer = await _run(problem, planner, Script(f"{seed} {way}", write), judge, seed)
        found[way] = "main" in answer and "bug" not in answer
    return found


# --- profiles --------------------------------------------------------------------------------------------------------


async def by_profile(seed: int) -> dict[str, Any]:
    """Return for each way how many times faster its program is than the first one."""
    world = Random(f"profile {seed}")
    costs = [world.lognormvariate(0, 1) for _ in range(PARTS)]

    def seconds(code: str) -> float:
        return sum(cost / (10 if f"fast_{part}" in code else 1) for part, cost in enumerate(costs))

    def judge(code: str, inputs: list[str], check: str) -> dict[str, Any]:
        parts = [(part, cost / (10 if f"fast_{part}" in code else 1)) for part, cost in enumerate(costs)]
        report = "\n".join(f"{int(1e6 * cost)}: {part + 2}:part {part}" for part, cost in parts) if check else ""
        return {"outcomes": _outcomes(["r0"] * len(inputs), report), "seconds": [[seconds(code)]] * 2}

    def program(fast: set[int]) -> str:
        kinds = [f"{'fast' if part in fast else 'slow'}_{part}();" for part in range(PARTS)]
        return _fenced(["int main() {", *kinds, "}"])

    def write(prompt: str, random: Random) -> str:
        parent = prompt.rpartition("Improve this program:")[2].partition("```\n")[0] if "Improve this" in prompt else ""
        fast = {int(part) for part in re.findall(r"fast_(\d)", parent)}
        if not parent:
            return program(
                {part for part in range(PARTS) if random.random() < 1 / PARTS} if "FRESH" in prompt else set()
            )
        hottest = re.search(r"that ran most often: line (\d+)", prompt)
        mends = hottest is not None and random.random() < MENDS
        return program(fast | {int(hottest[1]) - 2 if hottest is not None and mends else random.randrange(PARTS)})

    ways: dict[str, tuple[dict[str, Any], Any]] = {
        "profile": ({}, Evolve(n=1, rounds=STEPS + 1, repeats=2, profile=True)),
        "no profile": ({}, Evolve(n=1, rounds=STEPS + 1, repeats=2)),
        "samples": ({"prompt": "FRESH"}, Evolve(n=STEPS + 1, rounds=1, repeats=2)),
    }
    found: dict[str, Any] = {"table": "profile", "seed": seed}
    for way, (problem, planner) in ways.items():
        answer = await _run(problem, planner, Script(f"{seed} {way}", write), judge, seed)
        found[way] = sum(costs) / seconds(answer)
    return found


async def measure(programs: int) -> list[dict[str, Any]]:
    """Return a row for each program of each table."""
    return [await way(seed) for way in (by_lines, by_source, by_profile) for seed in range(programs)]


# --- the page --------------------------------------------------------------------------------------------------------


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    tables = {name: [row for row in rows if row["table"] == name] for name in ("lines", "source", "profile")}
    many = len(tables["lines"])
    text = _HEAD.format(programs=many, lines=LINES, samples=SAMPLES, budget=BUDGET, misplaced=MISPLACED)
    hits = {
        way: [float(row[way]) for row in tables["lines"]] for way in tables["lines"][0] if way not in ("table", "seed")
    }
    calls = {"samples, equal lines": SAMPLES}
    for way, found in hits.items():
        gap = "" if way == "exclude" else difference(hits["exclude"], found).points()
        text += f"| {way} | {calls.get(way, SAMPLES * LINES)} | {share(found).percent()} | {gap} |\n"
    text += _SOURCE.format(right=RIGHT, bugs=BUGS, shown=SHOWN, inputs=INPUTS, mistaken=MISTAKEN)
    found = {way: [float(row[way]) for row in tables["source"]] for way in ("source judges", "model judges", "samples")}
    for way, each in found.items():
        gap = "" if way == "source judges" else difference(found["source judges"], each).points()
        text += f"| {way} | {share(each).percent()} | {gap} |\n"
    text += _PROFILE.format(parts=PARTS, steps=STEPS + 1, mends=MENDS)
    speeds = {way: [float(row[way]) for row in tables["profile"]] for way in ("profile", "no profile", "samples")}
    for way, each in speeds.items():
        gap = "" if way == "profile" else ratio(speeds["profile"], each).number()
        text += f"| {way} | {mean(each).number()} | {gap} |\n"
    claims = [
        (difference(hits["exclude"], hits["samples, equal calls"]), 0.05),
        (difference(hits["exclude"], hits["no blame"]), 0.05),
        (difference(found["source judges"], found["samples"]), 0.1),
        (ratio(speeds["profile"], speeds["no profile"]), 1.2),
    ]
    return text + _FOOT.format(*(verdict(*claim) for claim in claims))


_HEAD = """# Programs by lines, translations by their source, hot lines in the prompt

`python -m experiments program_search --programs {programs}`

A script writes the programs and a function judges them, so the tables show the searches and no model. Each table has
{programs} programs. Brackets hold 95 % intervals. The claims were written before the rows.

## Lines

A program has {lines} lines. A candidate of a line is right with a chance of 35 to 85 %, else the compiler refuses it or
its output is wrong. In {misplaced:.0%} of refused candidates the compiler names another line. `code-search` writes
{samples} candidates for each line and compiles at most {budget} programs; plain samples are whole programs. *Equal
lines*: as many lines are written. *Equal calls*: eight times as many. *No blame*: the compiler names no line.
*Finds more*: `exclude`, the default, beside the way. `penalty 1` was added after the other rows.

| way | calls | found | finds more |
|---|---|---|---|
"""
_SOURCE = """
## Translations

A translation is right with a chance of {right:.0%}, else it has one of {bugs} bugs; an input shows a bug with a chance
of {shown:.0%}. One public case. Nine calls each: eight translations and {inputs} inputs of a tester, or nine
translations. Where the model writes the wanted output too, {mistaken:.0%} of them are wrong.
*More often*: `source judges` beside the way.

| way | right | more often |
|---|---|---|
"""
_PROFILE = """
## Profiles

A program has {parts} slow parts; one that is made fast takes a tenth. Each way writes {steps} programs. A proposer
makes one part fast: shown the hottest line, that one with a chance of {mends:.0%}, else any. A fresh sample has one
fast part on average. *÷*: `profile` beside the way.

| way | times faster | ÷ |
|---|---|---|
"""
_FOOT = """
## The claims

- By lines, at least 5 points more are found than by whole samples at equal calls: **{}**.
- With the compiler's blame, at least 5 points more than without: **{}**. A line that is named by mistake costs a right
  candidate; `penalty` keeps it. Where the compiler always names the faulty line, nothing right is lost.
- Tests that the source program judges: at least 10 points more right translations than nine samples and their majority:
  **{}**. Bugs that differ do not agree, so a majority of nine is hard to beat here.
- With the hot lines in the prompt, programs are at least 1.2 times as fast as without: **{}**.

How often a model mends what it is shown is a setting here: the tables say what the searches make of it.
"""


def main() -> None:
    """Run the searches and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments program_search", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--report", action="store_true", help="Write the page of the rows that are kept.")
    given = parser.parse_args()
    if not given.report:
        rows = asyncio.run(measure(given.programs))
        KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    PAGE.write_text(page([json.loads(line) for line in KEPT.read_text("utf-8").splitlines()]), encoding="utf-8")


if __name__ == "__main__":
    main()
