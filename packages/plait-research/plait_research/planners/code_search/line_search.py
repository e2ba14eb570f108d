"""A program line by line: candidates for each line, and the combinations of them, the most probable first."""

from __future__ import annotations

import contextlib
import heapq
import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

from plait.core.call_config import CallConfig
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, StepFailed
from plait.core.planning import derive
from plait.core.programs import has_returned

from .._compiled import RUN_PROGRAM, read_cells, read_errors
from .._programs import find_fault, read_language
from .programs import Test

LINE = """{question}

Write line {number} alone, as one line of code without the braces that its indentation implies: {part}
"""


class LineChoices:
    """Combinations of one candidate for each line, by the sum of their scores.

    A blamed candidate is in no later combination. With a `penalty` it stays, and its score falls. Of equal sums the
    combination with the earlier candidates is first.
    """

    def __init__(self, scores: Sequence[Sequence[float]], penalty: float = 0.0) -> None:
        self._scores, self._penalty = [list(row) for row in scores], penalty
        self._blamed = [set[int]() for _ in scores]
        self._heap: list[tuple[float, tuple[int, ...]]] = []
        self._known = set[tuple[int, ...]]()
        self._last: tuple[int, ...] | None = None
        self._push((0,) * len(scores))

    def blame(self, line: int, candidate: int) -> None:
        """Exclude a candidate of a line, or lower its score."""
        self._blamed[line].add(candidate)
        self._scores[line][candidate] -= self._penalty

    def pop(self) -> tuple[int, ...] | None:
        """Return the candidates of the next combination by line, or `None` after the last one."""
        while True:
            if self._last is not None:
                self._expand(self._last)
            if not self._heap:
                return None
            _, self._last = heapq.heappop(self._heap)
            if self._penalty or not any(at in blamed for at, blamed in zip(self._last, self._blamed, strict=True)):
                return self._last

    def _push(self, choice: tuple[int, ...]) -> None:
        if choice not in self._known:
            self._known.add(choice)
            score = 0.0
            for row, at in zip(self._scores, choice, strict=True):
                score += row[at]
            heapq.heappush(self._heap, (-score, choice))

    def _expand(self, choice: tuple[int, ...]) -> None:
        """Add the combinations that have the next candidate of one line."""
        for place in range(len(choice)):
            for other in product(*(self._next(line, at + (line == place)) for line, at in enumerate(choice))):
                self._push(other)

    def _next(self, line: int, at: int) -> range:
        """Return the first candidate from `at` that nothing blames; with a penalty those before it, too."""
        count, blamed = len(self._scores[line]), self._blamed[line]
        end = next((place for place in range(at, count) if place not in blamed), count)
        return range(at if self._penalty else end, min(end + 1, count))


def assemble(indents: Sequence[int], codes: Sequence[str]) -> str:
    """Return a program of lines: where the indentation changes, braces are added that the lines lack."""
    made: list[str] = []
    depth, before = 0, ""
    for indent, code in zip(indents, codes, strict=True):
        closed = max(0, depth - indent - (code == "}"))
        opened = max(0, indent - depth - before.endswith("{"))
        made.append("\t" * indent + "} " * closed + "{ " * opened + code)
        depth, before = indent, code
    return "\n".join(made) + "\n"


class LineSearch:
    """One search over the lines of a problem of the task `programs`."""

    def __init__(self, ctx: Context, question: str, lines: Sequence[Any], public: Sequence[Test]) -> None:
        self._ctx, self._question, self._lines, self._public = ctx, question, lines, public
        self._asked = [place for place, line in enumerate(lines) if line.text]
        """Lines that the model writes."""
        self._language = read_language(ctx.brief.task)

    async def answer(self, config: CallConfig, n: int, rounds: int, penalty: float) -> Answerable:
        """Write `n` candidates for each line; return the first program that passes, or that which passes most."""
        calls = (self._write_line(place, sample, config) for place in self._asked for sample in range(1, n + 1))
        written = await self._ctx.gather(*calls)
        candidates = [Counter(filter(None, written[at : at + n])).most_common() for at in range(0, len(written), n)]
        if not all(candidates):
            place = self._asked[candidates.index([])]
            raise PlannerError(f"none of {n} samples has code for line {place + 1}, {self._lines[place].text!r}")
        choices = LineChoices([[math.log2(count / n) for _, count in line] for line in candidates], penalty)
        best, passed, compiled, blamed, tried = "", -2, 0, 0, 0
        while tried < rounds and passed < len(self._public) and (choice := choices.pop()) is not None:
            tried += 1
            codes = [line.code for line in self._lines]
            for place, line, at in zip(self._asked, candidates, choice, strict=True):
                codes[place] = line[at][0]
            passes, wrong = await self._run(program := assemble([line.indent for line in self._lines], codes))
            compiled += wrong is None
            if passes > passed:
                best, passed = program, passes
            if wrong in self._asked:
                at = self._asked.index(wrong)
                choices.blame(at, choice[at])
                blamed += 1
        counts = f"program {tried} of at most {rounds}, {compiled} compiled, {blamed} candidates blamed"
        return self._ctx.answer(best, f"passes {max(0, passed)} of {len(self._public)} public cases; {counts}")

    async def _write_line(self, place: int, sample: int, config: CallConfig) -> str:
        """Return a candidate of a line; an empty text if the call fails."""
        pieces = config.parts(LINE, question=self._question, number=str(place + 1), part=self._lines[place].text)
        name = f"line-{place + 1}.{sample}"
        seed = derive(self._ctx.brief.request.seed, "code-search", name)
        with contextlib.suppress(StepFailed):
            return _read_line((await self._ctx.think(pieces, config, name=name, seed=seed)).text)
        return ""

    async def _run(self, program: str) -> tuple[int, int | None]:
        """Return the number of public cases that a program passes, and `None`; for one that the compiler refuses -1,
        and the line that it blames, from 0 (-1: none)."""
        inputs = [str(args[0]) for args, _ in self._public]
        reply: Any = await self._ctx.call(RUN_PROGRAM, code=program, language=self._language, inputs=inputs)
        if refused := reply.get("refused"):
            errors = read_errors(refused, self._language)
            return -1, errors[0].line - 1 if errors else -1
        cells = read_cells(reply, program, self._language, len(inputs))
        passed = sum(has_returned(cell, want) for cell, (_, want) in zip(cells, self._public, strict=True))
        faulty = inputs and passed == len(inputs) and await find_fault(self._ctx, program, inputs[0])
        return 0 if faulty else passed, None


def _read_line(text: str) -> str:
    """Return the first line of code in a reply.

    >>> _read_line("```cpp\\n  int n;\\n```")
    'int n;'
    """
    blocks = [block.partition("\n")[2] for block in text.split("```")[1::2]]
    return next((line.strip() for line in "\n".join(blocks or [text]).split("\n") if line.strip()), "")
