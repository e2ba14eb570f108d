"""Planner `blackboard`: workers write a common log in rounds, and each reads what the others have written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Part
from plait.core.step_handles import Trajectory
from plait.core.vocabulary import Depth, N, Rounds

__all__ = ["Blackboard"]

_CLAIM = re.compile(r"^[ \t>*-]*I take:(.*)$", re.IGNORECASE | re.MULTILINE)
_ENDS = re.compile(r"\\boxed\{[^{}]+\}|\banswer\b[ \t]*:[ \t]*\S", re.IGNORECASE)
_RULES = """{question}

{count} workers solve this together. Each writes a step at a time to a common log that all read. Before you begin a \
part, write a line `I take: …` with its name; never do a part that another worker has taken. When the whole is solved, \
write a line `answer: …`.

### Log
"""


class Blackboard(Flow):
    """Workers that read one another's steps, after Hogwild! inference (arXiv 2504.06261), over a normal engine.

    In each round every worker writes a `step` of at most one paragraph. Its prompt is the question, the log of all
    workers, and its own steps that the log does not have yet. The log only grows, in the order of rounds and workers
    and not of arrival, so all workers share one cached prefix; a worker's own text moves into it. With `depth` 1 a
    worker continues while the others still write their last step, and repeats more of their work. A claim (`I take: …`)
    that another worker made before is refused.

    All read all: a round of n workers makes n^2 references to steps.

    Differs from the original: workers read others after a step and not after a token, and each worker reads new text
    again; there is no shared attention. Defaults: 2 workers, 8 rounds, 128 tokens a step, temperature 0.7, depth 0.
    """

    fidelity = Fidelity("idea", paper="2504.06261")
    cost_exponent = 2.0

    step: Annotated[CallConfig, Uses("question", "count")] = Field(
        default=CallConfig(thinking="off", max_tokens=128, temperature=0.7, stop=("\n\n",)),
        description="A step. Its template, before the log, has `{question}` and `{count}`, the number of workers.",
    )
    answer: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(max_tokens=64), description="The answer after the log, where no step has given it."
    )
    n: N = 2
    rounds: Rounds = 8
    depth: Depth = 0

    def size(self) -> int:
        """Return the number of concurrent steps: `depth` rounds are written before the first is read."""
        return self.n * min(self.depth + 1, self.rounds)

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Have the workers write until one of them has the answer."""
        rows: list[list[Trajectory]] = []
        start = self.step.parts(_RULES, question=question, count=str(self.n))
        lag = min(self.depth, self.rounds)
        for number in range(self.rounds + lag):
            if number < self.rounds:
                rows.append([self._step(ctx, start, rows, worker) for worker in range(self.n)])
            ended = number - lag
            if ended < 0:
                continue
            await ctx.gather(*rows[ended])
            last = next((step for step in rows[ended] if _ENDS.search(step.text)), None)
            if last is not None:
                return ctx.answer(last, f"found by {last.step.label}", name="answer")
        pieces = [*start, *_build_log(rows), *self.answer.parts("Write the line `answer: …` now.")]
        return ctx.think(pieces, self.answer, name="finish", label="finish")

    def _step(
        self, ctx: Context, start: Sequence[Part], rows: Sequence[Sequence[Trajectory]], worker: int
    ) -> Trajectory:
        """Make a worker's next step: after the log, and its own steps that are not in it yet."""
        number, me = len(rows) + 1, f"worker-{worker + 1}"
        known = rows[: max(0, len(rows) - self.depth)]
        own = [(place, rows[place - 1][worker]) for place in range(len(known) + 1, number)]
        pieces = [piece for place, step in own for piece in (f"**{me} [{place}]:** ", step, "\n\n")]
        refused = "".join(f"(Refused: {reason})\n\n" for reason in _list_rejections(known, worker))
        return ctx.think(
            [*start, *_build_log(known), *pieces, f"{refused}**{me} [{number}]:**"],
            self.step,
            name=f"{me}-{number}",
            label=f"{me}, step {number}",
            keep_stop=False,
        )


def _build_log(rows: Sequence[Sequence[Trajectory]]) -> list[str | Trajectory]:
    """Return the log: all steps in the order of rounds and workers."""
    return [
        piece
        for number, row in enumerate(rows, 1)
        for worker, step in enumerate(row, 1)
        for piece in (f"**worker-{worker} [{number}]:** ", step, "\n\n")
    ]


def _list_rejections(rows: Sequence[Sequence[Trajectory]], worker: int) -> list[str]:
    """Return why claims of a worker do not count: another one has made them before, in the order of the log."""
    owners: dict[str, int] = {}
    refused: list[str] = []
    for row in rows:
        for place, step in enumerate(row):
            for claim in filter(None, (claimed.strip(" \t.") for claimed in _CLAIM.findall(step.text))):
                owner = owners.setdefault(claim.casefold(), place)
                if owner != place == worker:
                    refused.append(f"{claim} is taken by worker-{owner + 1}")
    return refused
