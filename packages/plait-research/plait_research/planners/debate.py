"""Planner `debate`: several agents answer, read one another's answers, and answer again; the majority decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Part, Plugin
from plait.core.step_handles import StepFailed, Trajectory
from plait.core.vocabulary import MaxPromptItems, MergeOption, N, Rounds
from plait.planners._shared.steps import strip_reasoning

from ._answer_changes import AnswerChanges, format_changes, have_agreed

__all__ = ["Debate"]

_SEEN = """

These are the answers of other agents:

{answers}

Use them as advice. Give your answer to the question again.
"""


class Debate(Flow):
    """Agents that read one another (multi-agent debate, Du et al., arXiv 2305.14325).

    Each agent answers, then reads the last answers of the others and answers again, in the same conversation, so that
    its prefix is cached. It ends after `rounds`, when all agree, or when a round has changed nothing; then they vote.
    `why` tells what each round changed (to right, to wrong): answers that only follow the majority cost tokens and win
    nothing, so compare with `sample` at the same number of calls before you choose it.

    All read all: a round of n agents has n^2 texts to read, unless `sparse` bounds how many each one reads.

    Differs from the original: agents run side by side; an agent that fails keeps its last answer, and one without an
    answer does not vote; it ends early. Defaults: 3 agents, 2 rounds, temperature 0.8.
    """

    fidelity = Fidelity("variant", "agents side by side, it ends early", paper="2305.14325")
    cost_exponent = 2.0

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.8),
        description="The first answers. Their template has `{question}`. At temperature 0 all agents say the same.",
    )
    turn: Annotated[CallConfig, Uses("answers", "arguments")] = Field(
        default=CallConfig(),
        description="An answer after reading those of the others, `{answers}`, or, against conformity, "
        "`{arguments}`, the same without the lines that claim an answer; what it leaves open is as `answer` has it.",
    )
    n: N = Field(default=3, ge=2)
    rounds: Rounds = 2
    max_prompt_items: MaxPromptItems = Field(
        default=None,
        description="Maximum number of items in one prompt, the nearest or best first: others, its next neighbours "
        "in a ring. By default all.",
    )
    merge: MergeOption = Plugin(name="majority")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Have the agents answer, read and answer again, and vote."""
        task, flips = ctx.brief.task, list[AnswerChanges]()
        asks = self.answer.parts("{question}", question=question)
        lines = await self._round(ctx, [self._ask(ctx, None, asks, i, 1) for i in range(self.n)], [])
        for number in range(2, self.rounds + 1):
            before = [task.extract(line.line) if line is not None else None for line in lines]
            # Agents that agree would only read their own answer again.
            if have_agreed(before, task):
                break
            asked = [
                None if line is None else self._ask(ctx, line, self._show_answers(lines, i), i, number)
                for i, line in enumerate(lines)
            ]
            lines = await self._round(ctx, asked, lines)
            flips.append(
                AnswerChanges.of(number, before, [task.extract(line.line) if line else None for line in lines], task)
            )
            # Who read all and changed nothing reads the same again in the next round.
            if not flips[-1].changed:
                break
        voting = [line for line in lines if line is not None]
        vote = ctx.join(voting, self.merge, on_failure="best-effort", name="vote")
        return ctx.answer(vote, format_changes(flips), name="answer")

    def _ask(
        self, ctx: Context, before: Trajectory | None, pieces: Sequence[Part], agent: int, number: int
    ) -> Trajectory:
        think = ctx.think if before is None else before.think
        return think(
            pieces,
            self.answer if before is None else self.turn.over(self.answer),
            name=f"agent-{agent + 1}-round-{number}",
            label=f"agent {agent + 1}, round {number}",
            chat=ctx.brief.task.chat(),
        )

    @staticmethod
    async def _round(
        ctx: Context, asked: Sequence[Trajectory | None], before: Sequence[Trajectory | None]
    ) -> list[Trajectory | None]:
        """Wait for a round; who failed keeps what it had said before."""
        await ctx.gather(*(answer for answer in asked if answer is not None), return_exceptions=True)
        lines: list[Trajectory | None] = []
        for place, answer in enumerate(asked):
            done = answer is not None and answer.done
            lines.append(answer if done else before[place] if before else None)
        # The first error is as good as any: the agents were asked the same.
        if not any(lines):
            error = next(answer.error for answer in asked if answer is not None)
            raise error if isinstance(error, StepFailed) else PlannerError("no agent has answered")
        return lines

    def _show_answers(self, lines: Sequence[Trajectory | None], agent: int) -> tuple[Part, ...]:
        """Return the message that shows an agent what the others said."""
        others = [lines[(agent + step) % len(lines)] for step in range(1, len(lines))]
        shown = [strip_reasoning(line.text).strip() for line in others[: self.max_prompt_items] if line is not None]
        answers, arguments = (
            "\n\n".join(f"One agent: {text}" for text in texts) for texts in (shown, map(_strip_claim, shown))
        )
        return self.turn.parts(_SEEN, answers=answers, arguments=arguments)


def _strip_claim(text: str) -> str:
    """Return an argument without the lines that claim an answer."""
    kept = [line for line in text.splitlines() if "answer" not in line.casefold() and "\\boxed" not in line]
    return "\n".join(kept) or "(no argument)"
