"""S*'s own way to choose: the model writes an input on which two programs differ, and says whose output is right."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations, islice

from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.flow import Context, StepFailed
from plait.core.programs import Cell

from .._programs import render_cell
from .programs import Candidate, count_samples, read_cases

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
