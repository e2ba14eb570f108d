"""Planner `scale`: steps of a plan, each done with as much effort as its difficulty asks for."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, cast

from pydantic import Field

from plait.core.awaited import Awaited, Joined, Line, Made, Pieces, StepFailed
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Part as Piece, Text
from plait.core.planning import LineOptions

from .._shared.steps import NO_THINKING, shortened
from .._shared.sub_problems import HARDEST, GraphText, Part

__all__ = ["Scale", "isotonic"]

LEAST = 100
"""Records below which a difficulty says nothing."""
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


class Scale(Flow):
    """Selective allocation of compute (SCALE, arXiv 2512.00466).

    Several outlines are drawn and the model picks one. Before a step is done it is asked, in one token, how difficult
    the step is, given the results that it builds on. Easy steps are answered at once (the thoughts are over before they
    begin); hard ones are thought through (`hard`), voted on, or given to a stronger model. A last step answers the
    question, and always counts as hard.

    Easy is a step whose difficulty has, by `records`, a chance of at least `floor` to be done right the easy way: an
    isotonic fit of (difficulty, was it right). With fewer than 100 records difficulties mean nothing, and every step is
    thought through; the paper's fixed threshold did most damage where it let too much pass.

    Differs from the paper: steps form a graph, and those that need nothing of one another are done at the same time,
    where the paper does all in order; the difficulty is calibrated; an outline that cannot be read is left out, where
    the code asks again for ever. Defaults: 4 outlines, temperature 0.6, a floor of 0.9.
    """

    outlines: int = Field(default=4, ge=1, le=9)
    """Outlines to pick from."""
    most: int = Field(default=8, ge=2, le=100)
    """Most steps of an outline."""
    records: tuple[tuple[float, float], ...] = ()
    """Of earlier steps: difficulty in [0, 1], and 1 where it was right when done the easy way, else 0."""
    floor: float = Field(default=0.9, ge=0.0, le=1.0)
    """Chance of being right from which a step is done the easy way."""
    hard: Literal["think", "vote", "model"] = "think"
    """How hard steps are done: one line of thought, a vote of `votes` lines, or one line of `model`."""
    votes: int = Field(default=5, ge=2, le=64)
    """Lines of a vote."""
    model: str | None = None
    """The stronger model."""
    easy_tokens: int = Field(default=256, ge=1)
    """Most tokens of an easy step."""
    hard_tokens: int = Field(default=2048, ge=1)
    """Most tokens of a hard one."""
    outline_tokens: int = Field(default=512, ge=1)
    """Most tokens of an outline."""
    temperature: float = Field(default=0.6, ge=0.0)
    """Of outlines and steps; 0 is greedy."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Pick an outline, do its steps as their needs allow, and answer."""
        parts = await self._outline(ctx, question)
        if not parts:
            return ctx.answer(await self._hard(ctx, question, "answer"), "no outline could be read: one hard step")
        tally = Tally(isotonic(self.records) if len(self.records) >= LEAST else [])
        done: dict[int, Awaited[list[Made[object]]]] = {}
        for part in parts.values():
            done[part.number] = ctx.gather(self._step(ctx, question, part, parts, dict(done), tally))
        results = [(await done[number])[0] for number in parts]
        prompt = _known(question, [parts[number].text for number in parts], results)
        final = await self._hard(ctx, [*prompt, _FINAL], "answer")
        return ctx.answer(final, f"{len(parts)} steps: {tally}", name="answered")

    async def _outline(self, ctx: Context, question: str) -> Mapping[int, Part]:
        """Return the steps of the outline that the model picks; empty if none can be read."""
        asked: LineOptions = {"max_tokens": self.outline_tokens, "temperature": self.temperature}
        prompt = _PLAN.format(question=question, most=self.most)
        drawn = [ctx.think(prompt, **{**asked, "label": f"outline {i + 1}"}) for i in range(self.outlines)]
        await ctx.gather(*drawn, return_exceptions=True)
        read: dict[str, Mapping[int, Part]] = {}
        for line in drawn:
            if line.done:
                text = GraphText(self.most)
                text.feed(line.text)
                text.close(cut=line.result.finish == "length")
                if len(text.parts) >= 2:
                    said = "\n".join(f"{number}. {part.text}" for number, part in text.parts.items())
                    read.setdefault(said, text.parts)
        found = list(read)
        if len(found) < 2:
            return read[found[0]] if found else {}
        numbers = [str(place) for place in range(1, len(found) + 1)]
        plans = "\n\n".join(f"Plan {number}\n{said}" for number, said in zip(numbers, found, strict=True))
        pick = ctx.think(_PICK.format(question=question, plans=plans), labels=numbers, label="which plan?")
        try:
            chances = (await pick).labels
        except StepFailed:
            chances = {}
        best = max(numbers, key=lambda each: (chances.get(each, -math.inf), -int(each)))
        return read[found[int(best) - 1]]

    async def _step(
        self,
        ctx: Context,
        question: str,
        part: Part,
        parts: Mapping[int, Part],
        before: Mapping[int, Awaited[list[Made[object]]]],
        tally: Tally,
    ) -> Made[object]:
        """Do one step when those that it needs are done."""
        needs = [number for number in part.needs if number in before]
        results = [(await before[number])[0] for number in needs]
        prompt = [*_known(question, [parts[number].text for number in needs], results), _OWN.format(text=part.text)]
        difficulty = await self._difficulty(ctx, prompt, part) if tally.fit else 1.0
        tally.easy += (easy := tally.chance(difficulty) >= self.floor)
        tally.hard += not easy
        label = f"{shortened(part.text)} ({'easy' if easy else 'hard'}, {difficulty:.2f})"
        if not easy:
            return await self._hard(ctx, prompt, label)
        begin = NO_THINKING if ctx.brief.task.chat() else ""
        return await ctx.think(
            prompt, begin=begin, max_tokens=self.easy_tokens, temperature=self.temperature, label=label
        )

    async def _difficulty(self, ctx: Context, prompt: Sequence[str | Piece | Made[object]], part: Part) -> float:
        """Return the expected mark in [0, 1]; what the outline says where no mark can be had."""
        try:
            line: Line = await ctx.think([*prompt, _DIFFICULT], labels=_DIGITS, label="how difficult?")
        except StepFailed:
            return (part.difficulty - 1) / (HARDEST - 1)
        shares = {int(digit): math.exp(logprob) for digit, logprob in line.labels.items()}
        return sum(digit * share for digit, share in shares.items()) / sum(shares.values()) / 9

    async def _hard(self, ctx: Context, prompt: Pieces, label: str) -> Line | Joined:
        """Do a step with all effort."""
        asked: LineOptions = {"max_tokens": self.hard_tokens, "temperature": self.temperature, "label": label}
        if self.hard == "vote":
            lines = [ctx.think(prompt, **asked) for _ in range(self.votes)]
            return await ctx.join(lines, "majority", tolerate="best-effort", label=f"{label}: vote")
        return await ctx.think(prompt, **{**asked, "model": self.model if self.hard == "model" else None})


def _known(question: str, texts: Sequence[str], results: Sequence[Made[object]]) -> list[str | Piece | Made[object]]:
    """Return the beginning of a step's prompt: the question, and the results that it builds on."""
    prompt: list[str | Piece | Made[object]] = [Text(text=question)]
    for text, result in zip(texts, results, strict=True):
        prompt += [f"\n\nDone: {text}\n", cast("Made[object]", result)]
    return prompt


Fit = list[tuple[float, float, int]]


@dataclass(slots=True)
class Tally:
    """How steps were done."""

    fit: Fit
    """Empty: difficulties mean nothing."""
    easy: int = 0
    hard: int = 0

    def chance(self, difficulty: float) -> float:
        """Return the chance that the easy way is right: the mean of a Beta distribution over the records of its pool,
        so that three lucky records at the end make no certainty."""
        if not self.fit:
            return -1.0
        _, value, count = self.fit[max(0, bisect_right(self.fit, (difficulty, math.inf)) - 1)]
        return (value * count + 1) / (count + 2)

    def __str__(self) -> str:
        return f"{self.easy} easy, {self.hard} hard" + ("" if self.fit else " (too few records to tell them apart)")


def isotonic(records: Sequence[tuple[float, float]]) -> Fit:
    """Return the non-increasing step function from difficulty to success that fits records best in the least squares,
    as its steps' left ends, values and numbers of records: pool adjacent violators (Ayer et al., 1955). Below the first
    it is the first's.

    >>> isotonic([(0.1, 1), (0.2, 0), (0.3, 1), (0.9, 0)])
    [(0.1, 1.0, 1), (0.2, 0.5, 2), (0.9, 0.0, 1)]
    """
    pools: list[tuple[float, float, int]] = []
    for difficulty, right in sorted(records, key=lambda each: (each[0], each[1])):
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
