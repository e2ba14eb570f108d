"""Planner `layers`: each layer of answers reads those of the layer before; a last call makes one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.chat import Message
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Text
from plait.core.step_handles import Trajectory
from plait.core.vocabulary import Models, N, Rounds
from plait.planners._shared.steps import strip_reasoning

from ._answer_changes import AnswerChanges, format_changes, have_agreed

__all__ = ["Layers"]

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
        "`{answers}`; what it leaves open is as `answer` has it.",
    )
    summary: Annotated[CallConfig, Uses("answers")] = Field(
        default=CallConfig(temperature=0.0), description="The call that aggregates the last layer, in the same way."
    )
    n: N = 6
    rounds: Rounds = Field(default=3, ge=2)
    models: Models = ()

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Have each layer read the one before, and aggregate."""
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
