"""Planner `exchange`: samples that see one another's drafts while they are written."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context, Flow
from plait.core.planning import derive
from plait.core.step_handles import Trajectory
from plait.core.vocabulary import N, Rounds

__all__ = ["Exchange"]

_DRAFTS = """\
{question}

Others work on this at the same time. What they have so far, right or wrong:

{drafts}
Write your own answer. Take from theirs what holds, and do not speak of them.
"""


class Exchange(Flow):
    """Samples that exchange drafts while they run, after Bridge (arXiv 2510.01143), over a normal engine.

    In each round every sample writes a limited number of tokens. It then continues its own text, with the others'
    drafts before it in the prompt. A sample that has ended is not called again, and the others still read it. After the
    last round the answers are counted.

    Differs from the paper, which trains blocks of attention between the samples of a batch: here samples read drafts as
    text, after a round and not after a token, and again in each round. The paper's gains come from its training and are
    not claimed. Defaults: 4 samples, 4 rounds, 256 tokens each, temperature 0.8.
    """

    fidelity = Fidelity("idea", paper="2510.01143")

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=256, temperature=0.8),
        description="A sample's first round. Its template has `{question}`.",
    )
    step: Annotated[CallConfig, Uses("question", "drafts")] = Field(
        default=CallConfig(max_tokens=256, temperature=0.8),
        description="A later round. Its template has `{question}` and the others' `{drafts}`; the sample's own text "
        "follows.",
    )
    n: N = 4
    rounds: Rounds = 4

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Write round after round, and count the answers."""
        texts, ended = [""] * self.n, [False] * self.n
        for number in range(1, self.rounds + 1):
            drafts, places = list(texts), [place for place in range(self.n) if not ended[place]]
            lines = [self._ask_to_continue(ctx, question, drafts, place, number) for place in places]
            await ctx.gather(*lines, return_exceptions=True)
            for place, line in zip(places, lines, strict=True):
                if line.done:
                    texts[place] += line.text
                    ended[place] = line.finished
            if all(ended):
                break
        if not any(texts):
            await lines[0]  # which says why
        return self._count_answers(ctx, texts)

    def _ask_to_continue(self, ctx: Context, question: str, drafts: list[str], place: int, number: int) -> Trajectory:
        """Ask one sample to continue its text after reading the others' drafts."""
        name = f"sample-{place + 1}.{number}"
        others = [f"--- {other + 1}\n{text}\n\n" for other, text in enumerate(drafts) if text and other != place]
        if others:
            pieces, prompt = self.step.parts(_DRAFTS, question=question, drafts="".join(others)), self.step
        else:
            pieces, prompt = self.answer.parts("{question}", question=question), self.answer
        if drafts[place]:
            prompt = prompt.model_copy(update={"begin": drafts[place]})
        seed = derive(ctx.brief.request.seed, "exchange", name)
        return ctx.think(pieces, prompt, name=name, label=f"sample {place + 1}, round {number}", seed=seed)

    def _count_answers(self, ctx: Context, texts: list[str]) -> Answerable:
        """Return the answer that most samples give, of equals the first."""
        task = ctx.brief.task
        answers = [answer for text in texts if (answer := task.extract(text)) is not None]
        votes = Counter(task.key(answer) for answer in answers)
        if not answers:
            return ctx.answer(max(texts, key=len), f"none of {self.n} samples has an answer: the longest text")
        key, most = max(votes.items(), key=lambda item: item[1])
        first = next(answer for answer in answers if task.key(answer) == key)
        return ctx.answer(first, f"{most} of {len(answers)} samples, each shown the others' drafts")
