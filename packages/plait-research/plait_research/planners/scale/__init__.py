"""Planner `scale`: steps of a plan, each done with as much effort as its difficulty asks for."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from pydantic import JsonValue

from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context
from plait.core.ops import Part as Piece, Text
from plait.core.step_handles import JoinHandle, Pieces, Promise, StepFailed, StepHandle, Trajectory
from plait.planners._shared.steps import shorten

from ...learning_planner import RunOutcome
from .._sub_problems import HARDEST, GraphText, Part
from .paper import ScaleOptions, run_in_order

__all__ = ["Scale", "isotonic"]

LEAST = 100
"""Minimum number of records for a difficulty to count."""
KEPT = 2000
"""Records that are kept, the newest."""
_PLAN = """\
{question}

Do not answer yet. Split the work into two to {most} steps. Write one line for each, in an order in which a step needs \
only earlier ones:

number. [difficulty D; needs N] step

D is from 1 (easy) to 5 (hard). N are the numbers of the steps whose results it cannot do without, or none. Write \
nothing before or after the list.
"""
_PICK = "{question}\n\nWhich of these plans is best?\n\n{plans}\n\nIts number:\n"
_DIFFICULT = "\n\nHow difficult is this step, from 0 (obvious) to 9 (very hard)? One digit:\n"
_OWN = "\n\nDo this step only, and write its result: {text}\n"
_FINAL = "\n\nAnswer the question now.\n"
_DIGITS = tuple("0123456789")


class Scale(ScaleOptions):
    """Selective allocation of compute (SCALE, arXiv 2512.00466).

    The model draws several outlines and picks one. Before each step it rates, in one token, how difficult the step is,
    given the results that the step builds on. Easy steps are answered directly (the thoughts end before they begin).
    Hard steps are thought through, voted on (`width` above 1), or given to a stronger model (`hard.model`). A last step
    answers the question, and always counts as hard.

    A step is easy if, by `records`, steps of its difficulty are right the easy way with a probability of at least
    `threshold`: an isotonic fit of (difficulty, right or wrong). With fewer than 100 records difficulties mean nothing,
    and every step is thought through; the paper's fixed threshold did most damage where it let too much pass. Runs with
    `threshold=0` answer every step the easy way and make records: `plait learn effort` does so, and `learn` keeps
    adding to them.

    Differs from the paper: steps form a graph and independent steps run in parallel, where the paper runs all in order;
    the difficulty is calibrated; an unreadable outline is left out, where the code asks again without end. Defaults: 4
    outlines, temperature 0.6, a threshold of 0.9.

    `criterion=score` is the authors' code: 8 outlines in JSON, one of which the model names; a score in [0, 1] for each
    step before any step runs; the question in place of the last step, which always scores .9; and the steps in order,
    thought through above `threshold` (.5 there). Only an unreadable reply is requested again, three times, where the
    authors ask without end.
    """

    fidelity = Fidelity(
        "variant",
        "a graph of steps, calibrated difficulty, with `criterion=score` as theirs",
        oracles=("scale-paper",),
        paper="2512.00466",
    )

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Pick an outline, do its steps as their needs allow, and answer."""
        if self.criterion == "score":
            return await run_in_order(self, ctx, question)
        parts = await self._outline(ctx, question)
        if not parts:
            return ctx.answer(await self._hard(ctx, question, "answer"), "no outline could be read: one hard step")
        tally = StepCounts(
            isotonic([(record[0], record[1]) for record in self.records]) if len(self.records) >= LEAST else [],
            known=len(self.records),
        )
        done: dict[int, Promise[list[StepHandle[object]]]] = {}
        for part in parts.values():
            done[part.number] = ctx.gather(self._step(ctx, question, part, parts, dict(done), tally))
        results = [(await done[number])[0] for number in parts]
        prompt = _prompt_start(question, [parts[number].text for number in parts], results)
        final = await self._hard(ctx, [*prompt, _FINAL], "answer")
        return ctx.answer(final, f"{len(parts)} steps: {tally}", data={"easy": [*tally.tried]}, name="answered")

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the records with the easy steps of a run: as right as its answer. That counts the mistakes of others
        against them, so a step that is called easy by these records is at least as sure as it seems."""
        match outcome.data:
            case {"easy": [*difficulties]} if difficulties and outcome.right is not None:
                made = [(float(cast("float", difficulty)), outcome.right) for difficulty in difficulties]
            case _:
                return {}
        return {"records": [[*record] for record in [*self.records, *made][-KEPT:]]}

    async def _outline(self, ctx: Context, question: str) -> Mapping[int, Part]:
        """Return the steps of the outline that the model picks; empty if none can be read."""
        pieces = self.outline.parts(_PLAN, question=question, most=str(self.max_branches))
        drawn = [ctx.think(pieces, self.outline, label=f"outline {i + 1}") for i in range(self.n)]
        await ctx.gather(*drawn, return_exceptions=True)
        read: dict[str, Mapping[int, Part]] = {}
        for line in drawn:
            if line.done:
                text = GraphText(self.max_branches)
                text.feed(line.text)
                text.close(cut=line.result.finish == "length")
                if len(text.parts) >= 2:
                    outline = "\n".join(f"{number}. {part.text}" for number, part in text.parts.items())
                    read.setdefault(outline, text.parts)
        outlines = list(read)
        if len(outlines) < 2:
            return read[outlines[0]] if outlines else {}
        numbers = [str(place) for place in range(1, len(outlines) + 1)]
        plans = "\n\n".join(f"Plan {number}\n{outline}" for number, outline in zip(numbers, outlines, strict=True))
        pieces = self.probe.parts(_PICK, question=question, plans=plans)
        pick = ctx.think(pieces, self.probe, labels=numbers, label="which plan?")
        try:
            chances = (await pick).labels
        except StepFailed:
            chances = {}
        best = max(numbers, key=lambda number: (chances.get(number, -math.inf), -int(number)))
        return read[outlines[int(best) - 1]]

    async def _step(
        self,
        ctx: Context,
        question: str,
        part: Part,
        parts: Mapping[int, Part],
        before: Mapping[int, Promise[list[StepHandle[object]]]],
        tally: StepCounts,
    ) -> StepHandle[object]:
        """Do one step when those that it needs are done."""
        needs = [number for number in part.needs if number in before]
        results = [(await before[number])[0] for number in needs]
        known = _prompt_start(question, [parts[number].text for number in needs], results)
        prompt = [*known, *self.part.parts(_OWN, text=part.text)]
        # With a threshold of 0 all are easy: so records are made.
        wanted = tally.fit or self.threshold == 0.0
        difficulty = await self._difficulty(ctx, prompt, part) if wanted else 1.0
        tally.easy += (easy := self.threshold == 0.0 or tally.chance(difficulty) >= self.threshold)
        tally.hard += not easy
        if easy:
            tally.tried.append(round(difficulty, 4))
        label = f"{shorten(part.text)} ({'easy' if easy else 'hard'}, {difficulty:.2f})"
        if not easy:
            return await self._hard(ctx, [*known, *self.hard.parts(_OWN, text=part.text)], label)
        return await ctx.think(prompt, self.easy(ctx), label=label)

    async def _difficulty(self, ctx: Context, prompt: Sequence[str | Piece | StepHandle[object]], part: Part) -> float:
        """Return the expected mark in [0, 1]; what the outline says where no mark can be had."""
        try:
            line: Trajectory = await ctx.think(
                [*prompt, *self.judge.parts(_DIFFICULT)], self.judge, labels=_DIGITS, label="how difficult?"
            )
        except StepFailed:
            return (part.difficulty - 1) / (HARDEST - 1)
        shares = {int(digit): math.exp(logprob) for digit, logprob in line.labels.items()}
        return sum(digit * share for digit, share in shares.items()) / sum(shares.values()) / 9

    async def _hard(self, ctx: Context, prompt: Pieces, label: str) -> Trajectory | JoinHandle:
        """Do a step with all effort."""
        lines = [ctx.think(prompt, self.hard, label=label) for _ in range(self.width)]
        if len(lines) == 1:
            return await lines[0]
        return await ctx.join(lines, "majority", on_failure="best-effort", label=f"{label}: vote")


def _prompt_start(
    question: str, texts: Sequence[str], results: Sequence[StepHandle[object]]
) -> list[str | Piece | StepHandle[object]]:
    """Return the beginning of a step's prompt: the question, and the results that it builds on."""
    prompt: list[str | Piece | StepHandle[object]] = [Text(text=question)]
    for text, result in zip(texts, results, strict=True):
        prompt += [f"\n\nDone: {text}\n", cast("StepHandle[object]", result)]
    return prompt


Fit = list[tuple[float, float, int]]


@dataclass(slots=True)
class StepCounts:
    """How steps were done."""

    fit: Fit
    """Empty: difficulties mean nothing."""
    easy: int = 0
    hard: int = 0
    known: int = 0
    """Records that there are."""
    tried: list[float] = field(default_factory=list[float])
    """Difficulties of the easy steps."""

    def chance(self, difficulty: float) -> float:
        """Return the chance that the easy way is right: the mean of a Beta distribution over the records of its pool,
        so that three lucky records at the end make no certainty."""
        if not self.fit:
            return -1.0
        _, value, count = self.fit[max(0, bisect_right(self.fit, (difficulty, math.inf)) - 1)]
        return (value * count + 1) / (count + 2)

    def __str__(self) -> str:
        few = f" (too few records to tell them apart: not calibrated, {self.known} of {LEAST})"
        return f"{self.easy} easy, {self.hard} hard" + ("" if self.fit else few)


def isotonic(records: Sequence[tuple[float, float]]) -> Fit:
    """Return the non-increasing step function from difficulty to success that fits records best in the least squares,
    as its steps' left ends, values and numbers of records: pool adjacent violators (Ayer et al., 1955). Below the first
    it is the first's.

    >>> isotonic([(0.1, 1), (0.2, 0), (0.3, 1), (0.9, 0)])
    [(0.1, 1.0, 1), (0.2, 0.5, 2), (0.9, 0.0, 1)]
    """
    pools: list[tuple[float, float, int]] = []
    for difficulty, right in sorted(records, key=lambda record: (record[0], record[1])):
        total, count, left = float(right), 1, difficulty
        if pools and pools[-1][0] == left:  # equal difficulties have one value
            _, more, others = pools.pop()
            total, count = total + more, count + others
        while pools and pools[-1][1] / pools[-1][2] <= total / count:
            left, more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((left, total, count))
    assert all(a[1] / a[2] >= b[1] / b[2] for a, b in pairwise(pools))
    return [(left, total / count, count) for left, total, count in pools]
