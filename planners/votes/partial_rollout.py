"""Planner `partial-rollout`: lines of work with tools, most of which branch off where another one was unsure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from plait.core.awaited import Line, StepFailed
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context
from plait.core.prompt import Prompt, Uses

from .._shared.steps import visible
from .._shared.talk import Talk, ToolTurns, Turn

__all__ = ["PartialRollout"]

_REPORT = """\
Report on this line of work for somebody who has not seen it. In order: the sub-problems and what depends on what; for \
each the tool, its arguments and the decisive part of what it returned; the reasoning that leads to the answer; the \
answer, or that there is none. No tool can be called."""
_INTEGRATE = """\
{question}

These are reports of {count} lines of work on this question:

{reports}

Weigh them against one another and choose the answer of one of them. That several agree makes an answer likelier and \
does not prove it. A report without a definite answer counts little. No tool can be called. Give the answer as the \
question asks for it."""


class PartialRollout(ToolTurns):
    """Partial rollouts and compressed aggregation (ParallelMuse, Li et al., arXiv 2510.24698).

    First `rollouts` lines of work go from the question to an answer, turn by turn, with tools. The turns at which the
    model was least sure are where it might have gone another way: from before each of the `positions` least sure ones
    `n` new lines branch off. They read what was said and observed before it and repeat no call. `fresh` lines begin
    anew beside the first ones. Each line that ends is condensed to a report at once, while others go on; one last call
    reads all reports and chooses. Lines that fail are left out.

    Many lines act at the same time, so the model is told of no tool that has side effects or needs approval, and
    none is called. Calls that change nothing are made once for all lines.

    Differs from the paper: a turn is scored as a whole, by exp of the mean entropy of its tokens' 16 likeliest (what
    these leave out counts as one more), not the part of it that calls tools; branches begin as soon as their line has
    ended. Defaults, as there: 1 line, 2 positions of 3 branches, 1 fresh line.
    """

    rollouts: int = Field(default=1, ge=1, le=1000)
    """Lines from which others branch off."""
    positions: int = Field(default=2, ge=0, le=1000)
    """Turns of each at which others branch off; where it has fewer, the others begin anew."""
    n: int = Field(default=3, ge=1, le=1000)
    """Lines that branch off at each of them."""
    fresh: int = Field(default=1, ge=0, le=1000)
    """Lines that begin anew, beside the first ones."""
    at: Literal["uncertain", "random", "uniform"] = "uncertain"
    """Where to branch: at the turns that the model was least sure of, which needs log-probabilities of its worker; or,
    to compare, at random ones or at equal distances."""
    turn: Annotated[Prompt, Uses()] = Prompt(max_tokens=1024, temperature=0.7)
    """One turn of a line of work."""
    report: Annotated[Prompt, Uses()] = Prompt(max_tokens=512, temperature=0.0)
    """What a line that has ended is condensed to."""
    answer: Annotated[Prompt, Uses("question", "count", "reports")] = Prompt(max_tokens=1024, temperature=0.0)
    """Reads all reports and chooses."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Let lines of work go on side by side, and choose among their reports."""
        hidden = frozenset(each.name for each in ctx.brief.tools if each.side_effects or each.approve)
        if len(hidden) == len(ctx.brief.tools):
            why = "all its tools change the world" if hidden else "there is none"
            raise PlannerError(f"partial-rollout explores with tools, and {why}: take `react` or `sample`")
        talk = Talk(ctx, question, self, hidden=hidden)
        branching = [self._family(ctx, talk) for _ in range(self.rollouts)]
        ended = await ctx.gather(*branching, self._lines(ctx, talk, [()] * self.fresh))
        reports = [each for group in ended for each in group]
        good = [each for each in reports if isinstance(each, Line)]
        if not good:
            raise next(each for each in reports if not isinstance(each, Line))
        told = "\n\n".join(f"Report {n}:\n{visible(each.text).strip()}" for n, each in enumerate(good, 1))
        pieces = self.answer.parts(_INTEGRATE, question=question, count=str(len(good)), reports=told)
        answer = ctx.think(pieces, self.answer, name="integrate", label="answer of the reports")
        await answer
        return ctx.answer(answer, f"{len(good)} reports of {len(reports)} lines", name="answer")

    async def _family(self, ctx: Context, talk: Talk) -> list[Line | StepFailed]:
        """Return the reports of a line and of those that branch off it."""
        try:
            path = await self._path(ctx, talk, ())
        except StepFailed as error:
            return [error, *await self._lines(ctx, talk, [()] * (self.positions * self.n))]
        spots = self._spots(ctx, path)
        starts = [path.turns[:spot] for spot in spots for _ in range(self.n)]
        starts += [()] * (self.positions * self.n - len(starts))
        (own,), branches = await ctx.gather(self._reports(ctx, talk, path), self._lines(ctx, talk, starts))
        return [own, *branches]

    async def _lines(self, ctx: Context, talk: Talk, starts: Sequence[tuple[Turn, ...]]) -> list[Line | StepFailed]:
        """Return the reports of lines that go on after some turns."""

        async def one(start: tuple[Turn, ...]) -> Line | StepFailed:
            try:
                path = await self._path(ctx, talk, start)
            except StepFailed as error:
                return error
            return await self._report(ctx, talk, path)

        return await ctx.gather(*map(one, starts))

    async def _path(self, ctx: Context, talk: Talk, start: tuple[Turn, ...]) -> Path:
        """Go on after some turns until there is an answer."""
        turns, unsure = list(start), [0.0] * len(start)
        while not turns or not turns[-1].final:
            line = await talk.ask(
                turns,
                self.turn,
                label=f"turn {len(turns) + 1}" + (f", from {len(start) + 1}" if start else ""),
                logprobs=16 if self.at == "uncertain" else 0,
            )
            signals = line.result.signals
            if signals is None and self.at == "uncertain":
                raise PlannerError(
                    f"the worker does not say how sure the model was of {line.name}, so nothing tells where to branch: "
                    "give at=uniform or at=random, or an engine that returns log-probabilities"
                )
            unsure.append(math.exp(signals.entropy) if signals is not None else 0.0)
            turn = talk.read(line, turns)
            turns.append(await talk.observed(turn) if turn.calls else turn)
        return Path(tuple(turns), tuple(unsure))

    def _spots(self, ctx: Context, path: Path) -> list[int]:
        """Return the turns before which to branch, from 1: before the first one a line begins anew."""
        places = range(1, len(path.turns))
        most = min(self.positions, len(places))
        match self.at:
            case "uncertain":
                return sorted(sorted(places, key=lambda place: (-path.unsure[place], place))[:most])
            case "random":
                return sorted(ctx.random.sample(list(places), most))
            case "uniform":
                return [1 + (2 * n + 1) * len(places) // (2 * most) for n in range(most)]

    async def _report(self, ctx: Context, talk: Talk, path: Path) -> Line | StepFailed:
        messages = talk.messages(path.turns)
        line = ctx.think(_REPORT, self.report, chat=True, messages=messages, label="report")
        try:
            return await line
        except StepFailed as error:
            return error

    async def _reports(self, ctx: Context, talk: Talk, path: Path) -> list[Line | StepFailed]:
        return [await self._report(ctx, talk, path)]


@dataclass(frozen=True, slots=True)
class Path:
    """A line of work from the question to an answer."""

    turns: tuple[Turn, ...]
    unsure: tuple[float, ...]
    """Of each turn: exp of the mean entropy (nats) of its tokens; 0 for those that it has from another line."""
