"""Planners whose branches read one another: `debate` (answers read and given again; the majority decides) and `layers`
(each layer of answers reads those of the layer before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.chat import Message
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Part, Plugin, Text
from plait.core.step_handles import StepFailed, Trajectory
from plait.core.task import Task
from plait.core.vocabulary import MaxPromptItems, MergeOption, Models, N, Rounds
from plait.planners._shared.steps import strip_reasoning

__all__ = ["Debate", "Layers"]


@dataclass(frozen=True, slots=True)
class AnswerChanges:
    """What one round changed, agent by agent. Right and wrong are counted where the task can tell."""

    round: int
    changed: int
    to_right: int
    to_wrong: int

    @classmethod
    def of(cls, round_: int, before: Sequence[JsonValue], after: Sequence[JsonValue], task: Task) -> AnswerChanges:
        """Compare the answers of two rounds."""
        changed = to_right = to_wrong = 0
        for old, new in zip(before, after, strict=True):
            if answer_key(old, task) == answer_key(new, task):
                continue
            changed += 1
            was, is_ = is_right(old, task), is_right(new, task)
            to_right += is_ is True and was is not True
            to_wrong += was is True and is_ is not True
        return cls(round_, changed, to_right, to_wrong)

    def __str__(self) -> str:
        return f"round {self.round}: {self.changed} changed, {self.to_right} to right, {self.to_wrong} to wrong"


def answer_key(answer: JsonValue, task: Task) -> str | None:
    """Return the form in which equal answers are equal; `None` for no answer."""
    return None if answer is None else task.key(answer)


def is_right(answer: JsonValue, task: Task) -> bool | None:
    """Whether an answer is right, where the task can tell."""
    return None if answer is None else task.verify(answer)


def have_agreed(answers: Sequence[JsonValue], task: Task) -> bool:
    """Whether all agents have the same answer."""
    keys = [answer_key(answer, task) for answer in answers]
    return keys[0] is not None and all(other == keys[0] for other in keys)


def format_changes(flips: Sequence[AnswerChanges]) -> str:
    """Return the flips of all rounds in one line."""
    return "; ".join(map(str, flips)) or "one round"


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
        "`{arguments}`, the same without the lines that claim an answer. Unset fields have the values of `answer`.",
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


_REFERENCES = """\
You have been given answers of several models to the user's latest question. Synthesize them into one answer of high \
quality. Judge them critically: some may be biased or wrong. Do not merely repeat them.

{answers}"""


class Layers(Flow):
    """Answers in layers (Mixture-of-Agents, Wang et al., arXiv 2406.04692).

    The first layer answers the question. Each further layer, and the call that aggregates the last one, reads all
    answers of the layer before as a system message. The planner ends early when all answers of a layer agree. `why`
    reports what each layer changed. With one model for all calls this is Self-MoA (arXiv 2502.00674), which is often
    better than a mixture; compare with `sample` at the same number of calls before you choose it.

    Differs from the original: the answers of a layer run in parallel and appear in a shuffled order, by the request's
    seed; a failed answer is left out; it ends early. Defaults: 3 rounds with the aggregating call, 6 answers in a
    layer, temperature 0.7, 512 tokens.
    """

    fidelity = Fidelity("variant", "shuffled order, failed answers left out, it ends early", paper="2406.04692")

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.7), description="The answers. Their template has `{question}`."
    )
    turn: Annotated[CallConfig, Uses("answers")] = Field(
        default=CallConfig(),
        description="The message of the system with which the answers of a later layer read those before, "
        "`{answers}`. Unset fields have the values of `answer`.",
    )
    summary: Annotated[CallConfig, Uses("answers")] = Field(
        default=CallConfig(temperature=0.0), description="The call that aggregates the last layer, in the same way."
    )
    n: N = 6
    rounds: Rounds = Field(default=3, ge=2)
    models: Models = ()

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Run layer after layer, each of which reads the layer before, and aggregate the last."""
        task, flips = ctx.brief.task, list[AnswerChanges]()
        lines: list[Trajectory] = []
        for layer in range(1, self.rounds):
            before = [task.extract(line.line) for line in lines]
            asked = [self._ask(ctx, question, lines, layer, i) for i in range(self.n)]
            ended = await ctx.gather(*asked, return_exceptions=True)
            done = [answer for answer in asked if answer.done]
            if not done:
                raise next(error for error in ended if isinstance(error, BaseException))
            # With an answer missing nobody can say which changed into which.
            if layer > 1 and len(done) == len(before):
                flips.append(AnswerChanges.of(layer, before, [task.extract(answer.line) for answer in done], task))
            lines = done
            if have_agreed([task.extract(line.line) for line in lines], task):
                return ctx.answer(
                    lines[0], f"all {len(lines)} of layer {layer} agree; {format_changes(flips)}", name="answer"
                )
        last = await self._ask(ctx, question, lines, self.rounds, 0, last=True)
        return ctx.answer(last, f"aggregated of {len(lines)}; {format_changes(flips)}", name="answer")

    def _ask(
        self, ctx: Context, question: str, read: Sequence[Trajectory], layer: int, place: int, last: bool = False
    ) -> Trajectory:
        history = list(ctx.brief.request.messages)
        shown = [strip_reasoning(line.text).strip() for line in read]
        # Models favour what stands first; a shuffled order gives no place of the layer before that for good.
        ctx.random.shuffle(shown)
        answers = "\n".join(f"{number}. {text}" for number, text in enumerate(shown, 1))
        chat = ctx.brief.task.chat()
        own = self.summary if last else self.turn if read else self.answer
        references = f"{own.text(_REFERENCES, answers=answers)}" if read else ""
        if read:
            history.insert(0, Message(role="system", content=references))
        pieces = self.answer.parts("{question}", question=question)
        if read and not chat:
            pieces = (Text(text=f"{references}\n\n"), *pieces)
        prompt = own.over(self.answer)
        if self.models and not last:
            prompt = prompt.model_copy(update={"model": self.models[place % len(self.models)]})
        return ctx.think(
            pieces,
            prompt,
            name="aggregate" if last else f"layer-{layer}-{place + 1}",
            label="aggregate" if last else f"layer {layer}, answer {place + 1}",
            chat=chat,
            messages=history if chat else (),
        )
