"""Programs of a code search: what came of them, inputs made from others, tests that a model wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Literal, cast

from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.flow import Context, StepFailed, Trajectory
from plait.core.programs import Cell, has_returned
from plait.core.tools.calls import loads

from .._programs import render_cell

Test = tuple[list[JsonValue], JsonValue]
"""Arguments, and the result that is wanted."""

_MOST = 1600
"""Characters of a trace that a model is shown: about 400 tokens."""


@dataclass(slots=True)
class Candidate:
    """A program, and what is known of it."""

    program: str
    key: str
    line: Trajectory
    weight: int = 1
    """How many samples wrote it."""
    passed: int = 0
    """Public cases that it passes."""
    cells: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """By input, as JSON."""

    def behaviour(self, inputs: Sequence[str]) -> str:
        """Return its outputs on the inputs as text: programs that do the same have the same."""
        return json.dumps([_kind(self.cells.get(key, ("none", None))) for key in inputs], sort_keys=True, default=str)


def _kind(cell: Cell) -> object:
    """Return the part of a cell that counts as behaviour: for an error, its class alone."""
    kind, value = cell
    return [kind, str(value).partition(":")[0]] if kind in ("error", "broken") else [kind, value]


def cluster_by_behaviour(pool: Sequence[Candidate], inputs: Sequence[str]) -> dict[str, list[Candidate]]:
    """Return programs by their behaviour on inputs (as JSON)."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in pool:
        groups.setdefault(candidate.behaviour(inputs), []).append(candidate)
    return groups


def count_samples(group: Sequence[Candidate]) -> int:
    """Count the samples that wrote the programs of a group."""
    return sum(candidate.weight for candidate in group)


def list_passed(candidate: Candidate, tests: Sequence[Test]) -> list[bool]:
    """Return for each test whether a program passes it."""
    return [has_returned(candidate.cells.get(json.dumps(args)), want) for args, want in tests]


def count_votes(candidate: Candidate, tests: Sequence[Test]) -> int:
    """Count the tests that a program passes."""
    return sum(list_passed(candidate, tests))


def mutate_inputs(args: Sequence[JsonValue]) -> list[list[JsonValue]]:
    """Return inputs like one that is known, each with one argument changed; they cost nothing."""
    inputs: list[list[JsonValue]] = []
    for at, value in enumerate(args):
        for other in _other_values(value):
            inputs.append([*args[:at], other, *args[at + 1 :]])
    return inputs


def _other_values(value: JsonValue) -> list[JsonValue]:
    match value:
        case bool():
            return [not value]
        case int():
            return [0, value + 1, -value]
        case float():
            return [0.0, -value]
        case str():
            return ["", value[::-1], value * 2]
        case list():
            return [[], value[:1], cast("JsonValue", value[::-1]), cast("JsonValue", value * 2)]
        case _:
            return []


def read_tests(text: str, most: int) -> list[Test]:
    """Read the tests that a model wrote: lines `{"args": […], "want": …}`; other lines are passed over, equal inputs
    taken once, and those that want nothing (`null`), which an empty function passes, left out."""
    tests: dict[str, Test] = {}
    for args, want in read_cases(text):
        if want is not None:
            tests.setdefault(json.dumps(args), (args, want))
    return list(tests.values())[:most]


def read_cases(text: str) -> Iterator[tuple[list[JsonValue], JsonValue]]:
    """Yield `args` and `want` of the lines `{"args": […], "want": …}` that a model wrote."""
    for line in text.splitlines():
        start = line.find("{")
        value = loads(line[start:].strip().rstrip(",")) if start >= 0 else None
        if isinstance(value, dict) and isinstance(args := value.get("args"), list):
            yield args, value.get("want")


def format_trace(program: str, reply: JsonValue) -> str:
    """Return the lines that a run of `build_tracer` told of, each with its text, for a prompt.

    >>> print(format_trace("def f(x):\\n    y = x + 1\\n    return y", [[2, "x = 1"], [2, "y = 2"], [3, "returns 2"]]))
    <BLANKLINE>
    What its lines did then:
    line 2: y = x + 1    # x = 1
    line 2: y = x + 1    # y = 2
    line 3: return y    # returns 2
    """
    texts = program.splitlines()
    lines: list[str] = []
    for entry in reply if isinstance(reply, list) else ():
        match entry:
            case [int(number), str(what)] if 0 < number <= len(texts):
                lines.append(f"line {number}: {texts[number - 1].strip()}    # {what}")
            case _:
                continue
    return "\n".join(["\nWhat its lines did then:", *lines])[:_MOST] if lines else ""


Rule = Literal["votes", "agreement", "majority", "judged"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for one program."""

    votes: float
    """Weight of the tests that it passes."""
    cluster: int
    """Samples whose programs behave like it, itself included."""
    length: int
    """Characters of its text."""


def choose(evidence: Sequence[Evidence], rule: Rule = "votes") -> int:
    """Return the place of the program that wins.

    `votes`: most tests passed, ties by cluster, then the shorter. `agreement`: cluster times tests (CodeT, arXiv
    2207.10397). `majority`: the largest cluster. Which is best depends on the world: where wrong programs share a few
    bugs votes win, where every wrong program is wrong in its own way agreement does (`python -m experiments
    code_search`).
    """

    def key(i: int) -> tuple[float, float, int, int]:
        facts = evidence[i]
        first = {
            "votes": facts.votes,
            "judged": facts.votes,
            "agreement": facts.votes * facts.cluster,
            "majority": float(facts.cluster),
        }[rule]
        second = facts.cluster if rule == "votes" else facts.votes
        return (-first, -second, facts.length, i)

    return min(range(len(evidence)), key=key)


def is_decided(votes: Sequence[float], behaviours: Sequence[object], outstanding: float) -> bool:
    """Return whether the leader's votes are ahead of all programs that behave otherwise by more than `outstanding`, the
    votes still to come: then these cannot change which behaviour wins."""
    leader = max(range(len(votes)), key=votes.__getitem__)
    others = [vote for vote, behaviour in zip(votes, behaviours, strict=True) if behaviour != behaviours[leader]]
    return votes[leader] - max(others, default=-math.inf) > outstanding


INPUTS = """{question}

Do not solve it. Write up to {count} inputs to test it with, one a line, each as JSON: {"args": [arguments]}
"""
INPUT = """{question}

Two solutions:

```python
{a}
```

```python
{b}
```

Write one input on which they differ, as one line of JSON: {"args": [arguments]}
"""
VERDICT = """{question}

Two solutions were run on {input}.

A:

```python
{a}
```

It gave {output_a}

B:

```python
{b}
```

It gave {output_b}

Whose output is right? Reason shortly, and end with the letter A or B.
"""
_LETTER = re.compile(r"\b([AB])\b")
Groups = Sequence[Sequence[Candidate]]


def read_inputs(text: str, most: int) -> list[list[JsonValue]]:
    """Read the inputs that a model wrote, lines `{"args": […]}`; equal ones once."""
    return list({json.dumps(args): args for args, _ in read_cases(text)}.values())[:most]


class OutputJudge:
    """Compares groups of programs that behave alike, each pair on an input of its own.

    `cells` runs a program on inputs. A verdict counts if it is the same in both orders.
    """

    def __init__(
        self,
        ctx: Context,
        question: str,
        asks: CallConfig,
        verdict: CallConfig,
        cells: Callable[[Candidate, Sequence[list[JsonValue]]], Awaitable[list[Cell]]],
    ) -> None:
        self._ctx, self._question, self._asks, self._verdict, self._cells = ctx, question, asks, verdict, cells
        self.compared = 0

    async def choose_best(self, groups: Groups, most: int) -> tuple[Candidate, int]:
        """Return a program of the group that wins most comparisons, and how many it won: of equals that of the larger
        group, then the shorter one. `max_branches`: pairs that are compared, of the largest groups."""
        ordered = sorted(groups, key=lambda group: -count_samples(group))
        pairs = list(islice(combinations(range(len(ordered)), 2), most))
        won = await self._ctx.gather(*(self._winner(number, ordered, *pair) for number, pair in enumerate(pairs, 1)))
        wins = [won.count(place) for place in range(len(ordered))]
        place = max(range(len(ordered)), key=lambda at: (wins[at], count_samples(ordered[at]), -at))
        return min(ordered[place], key=lambda candidate: len(candidate.program)), wins[place]

    async def _winner(self, number: int, groups: Groups, one: int, other: int) -> int | None:
        """Return which of two groups is right on an input that tells them apart; `None` where that is not clear."""
        a, b = groups[one][0], groups[other][0]
        pieces = self._asks.parts(INPUT, question=self._question, a=a.program, b=b.program)
        try:
            line = await self._ctx.think(pieces, self._asks, name=f"input-{number}")
        except StepFailed:
            return None
        inputs = read_inputs(line.text, 1)
        if not inputs:
            return None
        (left,), (right,) = await self._cells(a, inputs), await self._cells(b, inputs)
        if left == right:
            return None
        first = await self._ask_for_verdict(f"verdict-{number}.1", inputs[0], a, left, b, right)
        second = await self._ask_for_verdict(f"verdict-{number}.2", inputs[0], b, right, a, left)
        self.compared += 1
        return {("A", "B"): one, ("B", "A"): other}.get((first, second))

    async def _ask_for_verdict(
        self, name: str, args: list[JsonValue], a: Candidate, left: Cell, b: Candidate, right: Cell
    ) -> str:
        """Return the letter of a verdict, or an empty text."""
        fields = {"a": a.program, "b": b.program, "output_a": render_cell(left), "output_b": render_cell(right)}
        pieces = self._verdict.parts(VERDICT, question=self._question, input=json.dumps(args), **fields)
        try:
            letters = _LETTER.findall((await self._ctx.think(pieces, self._verdict, name=name)).text)
        except StepFailed:
            return ""
        return letters[-1] if letters else ""
