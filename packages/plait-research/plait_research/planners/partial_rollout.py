"""Planner `partial-rollout`: lines of work with tools, most of which branch off where another one was unsure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context
from plait.core.result import Result, Token
from plait.core.step_handles import StepFailed, Trajectory
from plait.core.vocabulary import Count, N, Warmup
from plait.planners._shared.conversation import ToolConversation, ToolTurns, Turn
from plait.planners._shared.steps import strip_reasoning

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


_TAGS = {"thoughts": ("<think>", "</think>"), "calls": ("<tool_call>", "</tool_call>")}
_NOTHING: Mapping[str, float] = {"turn": 0.0, "thoughts": 0.0, "calls": 0.0}


class PartialRollout(ToolTurns):
    """Partial rollouts and compressed aggregation (ParallelMuse, Li et al., arXiv 2510.24698).

    First, `warmup` trajectories run from the question to an answer, turn by turn, with tools. `n` new trajectories then
    branch off before each of the `positions` turns at which the model was least sure. They read the text and the
    observations before that turn, and repeat no call. `fresh` trajectories begin at the question beside the first ones.
    A finished trajectory is condensed to a report at once, while others continue; one last call reads all reports and
    chooses. Failed trajectories do not count.

    Many trajectories act at the same time, so the model gets no tool that has side effects or needs approval, and no
    such tool is called. Equal calls without side effects run once for all trajectories.

    The score of a part is exp of the mean entropy of its tokens' 16 likeliest. Differs from the paper: by default the
    part is the whole turn, and the mass outside the 16 counts as one more token; branches begin as soon as their
    trajectory has ended. Defaults, as in the paper: 1 trajectory, 2 positions of 3 branches, 1 fresh trajectory.
    """

    fidelity = Fidelity("variant", "by default whole turns, `criterion` has the paper's parts", paper="2510.24698")

    warmup: Warmup = Field(default=1, le=1000)
    positions: Count = Field(
        default=2,
        ge=0,
        le=1000,
        description="Number of turns of each line at which others branch off. If a line has fewer, the others "
        "start over.",
    )
    n: N = Field(
        default=3, le=1000, description="Number of parallel branches: lines that branch off at each of the positions."
    )
    fresh: Count = Field(
        default=1, ge=0, le=1000, description="Number of trajectories that start over, in addition to the first ones."
    )
    criterion: Literal["turn", "calls", "thoughts", "mixed", "random", "uniform"] = Field(
        default="turn",
        description="Criterion for branch points: how unsure the model was of a turn, which needs "
        "log-probabilities of its worker; or, to compare, `random` turns or `uniform` distances. `turn`: all tokens "
        "count; else those of its last call (between `<tool_call>` tags), those of its thoughts (between `<think>` "
        "tags), or half of the positions by calls, the others by thoughts. The last three are the paper's, and need "
        "the tokens themselves (`Sampling.top_logprobs`); a turn without the part comes last.",
    )
    turn: CallConfig = Field(
        default=CallConfig(max_tokens=1024, temperature=0.7),
        description="One turn of a line of work. Its template opens the prompt, before the tools.",
    )
    summary: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0), description="The summary of an ended trajectory."
    )
    answer: Annotated[CallConfig, Uses("question", "count", "reports")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0), description="Reads all reports and chooses."
    )

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Continue trajectories in parallel, and choose among their reports."""
        # Many lines try the same things: what has an effect would have it many times.
        hidden = frozenset(tool.name for tool in ctx.brief.tools if tool.side_effects or tool.approve)
        if len(hidden) == len(ctx.brief.tools):
            why = "all its tools change the world" if hidden else "there is none"
            raise PlannerError(f"partial-rollout explores with tools, and {why}: take `react` or `sample`")
        talk = ToolConversation(ctx, question, self, hidden=hidden)
        branching = [self._family(ctx, talk) for _ in range(self.warmup)]
        ended = await ctx.gather(*branching, self._lines(ctx, talk, [()] * self.fresh))
        reports = [report for group in ended for report in group]
        good = [report for report in reports if isinstance(report, Trajectory)]
        if not good:
            raise next(report for report in reports if not isinstance(report, Trajectory))
        told = "\n\n".join(f"Report {n}:\n{strip_reasoning(report.text).strip()}" for n, report in enumerate(good, 1))
        pieces = self.answer.parts(_INTEGRATE, question=question, count=str(len(good)), reports=told)
        answer = ctx.think(pieces, self.answer, name="integrate", label="answer of the reports")
        await answer
        return ctx.answer(answer, f"{len(good)} reports of {len(reports)} lines", name="answer")

    async def _family(self, ctx: Context, talk: ToolConversation) -> list[Trajectory | StepFailed]:
        """Return the reports of a trajectory and of the trajectories that branch off it."""
        try:
            path = await self._path(ctx, talk, ())
        except StepFailed as error:
            # Without a first line there is nothing to branch off, and its share of lines begins anew.
            return [error, *await self._lines(ctx, talk, [()] * (self.positions * self.n))]
        spots = self._branch_turns(ctx, path)
        starts = [path.turns[:spot] for spot in spots for _ in range(self.n)]
        starts += [()] * (self.positions * self.n - len(starts))
        (own,), branches = await ctx.gather(self._reports(ctx, talk, path), self._lines(ctx, talk, starts))
        return [own, *branches]

    async def _lines(
        self, ctx: Context, talk: ToolConversation, starts: Sequence[tuple[Turn, ...]]
    ) -> list[Trajectory | StepFailed]:
        """Return the reports of trajectories that continue after some turns."""

        async def one(start: tuple[Turn, ...]) -> Trajectory | StepFailed:
            try:
                path = await self._path(ctx, talk, start)
            except StepFailed as error:
                return error
            return await self._report(ctx, talk, path)

        return await ctx.gather(*map(one, starts))

    async def _path(self, ctx: Context, talk: ToolConversation, start: tuple[Turn, ...]) -> Path:
        """Continue after some turns until there is an answer."""
        turns, unsure = list(start), [_NOTHING] * len(start)
        uncertain = self.criterion not in ("random", "uniform")
        by_token = uncertain and self.criterion != "turn"
        prompt = self.turn.model_copy(update={"top_logprobs": 16}) if by_token else self.turn
        while not turns or not turns[-1].is_final:
            line = await talk.next_turn(
                turns,
                prompt,
                label=f"turn {len(turns) + 1}" + (f", from {len(start) + 1}" if start else ""),
                logprobs=16 if uncertain and not by_token else 0,
            )
            sure = self._measure_entropy(line.result)
            if sure is None and uncertain:
                raise PlannerError(
                    f"the worker does not say how sure the model was of {line.name}, so nothing tells where to branch: "
                    "give criterion=uniform or criterion=random, or an engine that returns log-probabilities"
                )
            unsure.append(sure or _NOTHING)
            turn = talk.read(line, turns)
            turns.append(await talk.observe(turn) if turn.calls else turn)
        return Path(tuple(turns), tuple(unsure))

    def _measure_entropy(self, result: Result) -> Mapping[str, float] | None:
        """Return how unsure the model was of the parts of a turn; `None` where the worker does not say."""
        if self.criterion == "turn":
            return None if result.signals is None else {"turn": math.exp(result.signals.entropy)}
        if not result.tokens:
            return None
        return {part: region_entropy(result.tokens, *tags) for part, tags in _TAGS.items()}

    def _branch_turns(self, ctx: Context, path: Path) -> list[int]:
        """Return the turns before which to branch, from 1: before the first one a line begins anew."""
        places = range(1, len(path.turns))
        most = min(self.positions, len(places))
        match self.criterion:
            case "random":
                return sorted(ctx.random.sample(list(places), most))
            case "uniform":
                return [1 + (2 * n + 1) * len(places) // (2 * most) for n in range(most)]
            case _:
                spots: list[int] = []
                parts = ("calls", "thoughts") if self.criterion == "mixed" else (self.criterion,)
                for number, part in enumerate(parts, 1):
                    left = [place for place in places if place not in spots]
                    left.sort(key=lambda place: (-path.unsure[place][part], place))
                    spots += left[: -(-most * number // len(parts)) - len(spots)]
                return sorted(spots)

    async def _report(self, ctx: Context, talk: ToolConversation, path: Path) -> Trajectory | StepFailed:
        messages = talk.messages(path.turns)
        line = ctx.think(self.summary.parts(_REPORT), self.summary, chat=True, messages=messages, label="report")
        try:
            return await line
        except StepFailed as error:
            return error

    async def _reports(self, ctx: Context, talk: ToolConversation, path: Path) -> list[Trajectory | StepFailed]:
        return [await self._report(ctx, talk, path)]


def region_entropy(tokens: Sequence[Token], begin: str, end: str) -> float:
    """Return exp of the mean entropy of the tokens between the last `begin` and the last `end`, -1 without such. Of
    each token the likeliest that were told count: their shares are made to sum to 1, their logarithms are as told."""
    text = "".join(token.text for token in tokens)
    start, stop = text.rfind(begin), text.rfind(end)
    start, at = start + len(begin) if start >= 0 else len(text), 0
    entropies: list[float] = []
    for token in tokens:
        # A token that reaches over an end of the region is of both sides, and counts for none.
        if at >= start and at + len(token.text) <= stop and token.top:
            chances = [math.exp(logprob) for _, logprob in token.top]
            entropies.append(
                -sum(p * logprob for p, (_, logprob) in zip(chances, token.top, strict=True)) / sum(chances)
            )
        at += len(token.text)
    return math.exp(sum(entropies) / len(entropies)) if entropies else -1.0


@dataclass(frozen=True, slots=True)
class Path:
    """A line of work from the question to an answer."""

    turns: tuple[Turn, ...]
    unsure: tuple[Mapping[str, float], ...]
    """Of each turn, by part: exp of the mean entropy (nats) of its tokens; 0 for those that it has from another
    line."""
