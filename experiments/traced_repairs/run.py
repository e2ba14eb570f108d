"""Do traces in repair prompts make `code-search` better at equal tokens?

Traces in repair prompts: `code-search` with `trace_guided` and without it, at equal tokens.

    python -m experiments traced_repairs --problems 200 --seed 1

The proposer is a script. A fresh program is right with a known probability, else a mutant with one line changed. A
repair is right with a stated probability, which a trace may raise; or it reads three lines of the program and is right
if the wrong one is among them. Without a trace these are any three. With one they are of the lines that the trace
names, or that are conditions, whose running it does not tell: so what the trace is worth follows there from what the
planner shows. The figures say what a trace has to bring to be worth its tokens, nothing about any model.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait_research.planners.code_search import CodeSearch
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

from .._tools.functions import BRANCHED, PUBLIC, TESTS, Function, functions, returned, run_here, run_python
from .._tools.statistics import difference, mean

__all__ = ["REPAIRERS", "Done", "page", "row", "solve", "suspects"]

RIGHT, ERROR, ITEMS, READ = 0.1, 0.2, 4, 3
"""Probabilities that a fresh program is right and that a test is wrong; items of the public case; lines that a
repairer reads."""
REPAIRERS: dict[str, tuple[float, float] | None] = {
    "30 %, no better for a trace": (0.3, 0.3),
    "30 %, 40 % with a trace": (0.3, 0.4),
    "30 %, 50 % with a trace": (0.3, 0.5),
    "30 %, 60 % with a trace": (0.3, 0.6),
    f"reads {READ} lines": None,
}
"""Probability that a repair is right without a trace and with one; or one that reads lines."""
SETTINGS = ((8, 1), (4, 3))
"""Samples and rounds of repair of the planner with traces."""
_ASK, _TRACE = "This program fails: ", "What its lines did then:"
_BLOCK = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Done:
    """One function."""

    right: bool
    """The chosen program is right on the hidden inputs."""
    tokens: float
    """Read and written: each text once, as a prefix cache has it; a token for four characters."""


def suspects(program: str, trace: str) -> list[int]:
    """Return the lines among which a repairer looks: those of the program, less those that a trace rules out."""
    lines = dict(enumerate(program.splitlines()[1:], 2))
    named = {int(each) for each in re.findall(r"^line (\d+):", trace, re.MULTILINE)}
    kept = [i for i, line in lines.items() if not named or i in named or line.rstrip().endswith(":")]
    return [i for i in kept if lines[i].strip() != "else:"]


def _answering(
    function: Function, odds: tuple[float, float] | None, seed: int, texts: list[int]
) -> Callable[[Job, Random], Result]:
    """Return the script for one function. `texts` gets the lengths of what is read and written, in characters."""
    passing, failing = function.wrong, function.caught
    tested = [list(each) for each in function.inputs[PUBLIC : PUBLIC + TESTS]]
    shown: set[str] = set()

    def fresh(random: Random) -> str:
        half = passing if random.random() < 0.5 else failing
        return function.right if random.random() < RIGHT else random.choice(half)

    def repaired(prompt: str, random: Random) -> str:
        program, trace = _BLOCK.findall(prompt)[-1], prompt.rpartition(_ASK)[2].partition(_TRACE)[2]
        chance, other = random.random(), random.choice(passing + failing)
        if odds is not None:
            return function.right if chance < odds[bool(trace)] else other
        lines = suspects(program, trace)
        pairs = zip(program.splitlines(), function.right.splitlines(), strict=True)
        fault = next((i for i, (one, two) in enumerate(pairs, 1) if one != two), 0)
        return function.right if fault in random.sample(lines, min(READ, len(lines))) else other

    def wanted(items: Sequence[int], random: Random) -> object:
        right = function.value(function.right, items)
        values = {function.value(one, items) for one in passing} - {right, None}
        wrong = values and random.random() < ERROR
        return json.loads(random.choice(sorted(values)) if wrong else right)

    def answer(job: Job, _: Random) -> Result:
        if not isinstance(job.op, ModelCall):
            return Result(value=run_here(job.op.args["code"]))  # type: ignore[union-attr,index,arg-type]
        name = job.step.rpartition("/")[2].rpartition(":")[2]
        random = Random(f"{seed}/{function.right}/{name}")
        prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
        text = ""
        if name.startswith("tests"):
            text = "\n".join(json.dumps({"args": [each], "want": wanted(each, random)}) for each in tested)
        elif name.startswith("difference"):
            a, b = _BLOCK.findall(prompt)[:2]
            apart = (each for each in function.inputs[1:] if function.value(a, each) != function.value(b, each))
            items = next(apart, None)
            text = "" if items is None else json.dumps({"args": [items], "want": wanted(items, random)})
        else:
            program = repaired(prompt, random) if name.startswith("repair") else fresh(random)
            text = f"```python\n{program}\n```"
        new = prompt[prompt.rindex(_ASK) :] if name.startswith("repair") else "" if prompt in shown else prompt
        shown.add(prompt)
        texts.append(len(new) + len(text))
        return Result(value=text, usage=Usage(completion=len(text) // 4 + 1))

    return answer


def solve(function: Function, n: int, repairs: int, guided: bool, odds: tuple[float, float] | None, seed: int) -> Done:
    """Run the planner on one function."""
    public = [{"args": [each], "want": json.loads(returned(function.right, each))} for each in function.inputs[:PUBLIC]]
    text = json.dumps({"prompt": "Write f.", "entry": "f", "public": public})
    texts: list[int] = []
    done = simulate(
        Request(text=text, task=Plugin(name="code"), seed=seed),
        planner=CodeSearch(n=n, repairs=repairs, tests=TESTS, trace_guided=guided),
        hosts=[Host("host", slots=16)],
        outcome=_answering(function, odds, seed, texts),
        tools=[run_python.spec],
        seed=seed,
    )
    assert done.result is not None, done.failure
    return Done(function.is_right(done.result.value), sum(texts) / 4)


def _all(
    given: Sequence[Function],
    samples: Sequence[int],
    repairs: int,
    guided: bool,
    odds: tuple[float, float] | None,
    seed: int,
) -> list[Done]:
    pairs = enumerate(zip(given, samples, strict=True))
    return [solve(each, n, repairs, guided, odds, seed + i) for i, (each, n) in pairs]


def _tokens(done: Sequence[Done]) -> float:
    return fmean(each.tokens for each in done)


def row(name: str, n: int, repairs: int, given: Sequence[Function], others: Sequence[Function], seed: int) -> str:
    """Return a row of the table: traces, and without them as many samples as take the same tokens.

    That number is found on other functions; between two whole numbers, some functions get the one and some the other.
    """
    odds = REPAIRERS[name]
    aim = _tokens(_all(others, [n] * len(others), repairs, True, odds, seed))
    fewer = more = n
    low = high = _tokens(_all(others, [n] * len(others), repairs, False, odds, seed))
    while high < aim:
        fewer, low, more = more, high, more + 1
        high = _tokens(_all(others, [more] * len(others), repairs, False, odds, seed))
    share = 0.0 if high == low else (aim - low) / (high - low)
    random = Random(seed)
    samples = [more if random.random() < share else fewer for _ in given]
    with_it = _all(given, [n] * len(given), repairs, True, odds, seed)
    without = _all(given, samples, repairs, False, odds, seed)
    gain = difference([each.right for each in with_it], [each.right for each in without])
    cells = [name, f"{n} × (1 + {repairs})", f"{fmean(samples):.1f} × (1 + {repairs})"]
    cells += [f"{_tokens(found):,.0f}" for found in (with_it, without)]
    cells += [mean([each.right for each in found]).percent() for found in (with_it, without)]
    return f"| {' | '.join([*cells, gain.points()])} |"


def page(count: int, seed: int) -> str:
    """Return the table as Markdown."""
    given, others = functions(count, seed, BRANCHED, ITEMS), functions(count // 2, seed + 1, BRANCHED, ITEMS)
    others = [each for each in others if each.right not in {one.right for one in given}]
    lines = [
        "| a repair is right | with a trace | without | tokens | tokens | selected | selected | difference |",
        "|---|---|---|---|---|---|---|---|",
        *(row(name, n, repairs, given, others, seed) for n, repairs in SETTINGS for name in REPAIRERS),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run it, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(page(asked.problems, asked.seed))
