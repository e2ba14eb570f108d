"""Planner `speculate`: a draft model steps ahead, and the target model confirms its steps side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context
from plait.core.step_handles import StepFailed, Trajectory
from plait.core.vocabulary import Depth, Rounds
from plait.planners._shared.conversation import ToolConversation, ToolTurns, Turn

__all__ = ["Speculate", "SpeculationRecord", "best_window"]


_LEAST = 8
"""Comparisons before the draft may be given up; then it is tried again in one round of as many."""


class Speculate(ToolTurns):
    """Speculation over steps of an agent (Dynamic Speculative Planning, Guan et al., arXiv 2509.01920).

    A cheap draft model writes step after step, with the tools that change nothing. The target model writes each of
    these steps too, behind the draft's steps before it, all at the same time. As long as both do the same the steps
    stand; at the first difference the target's own step is taken, the rest is given up, and a new round begins. The
    output equals the target's own (`depth=1`); at temperature 0 even the text is the same.

    With tools a step is a turn: the same calls, with arguments that the tool takes for the same, in the same order.
    The conversation keeps calls and results and not the thoughts around them, so that equal steps lead on equally.
    Without tools a step is a piece of the text up to `target.stop`, and has to be equal letter for letter. A call of a
    tool with side effects, or one that a person has to approve, is made only after the target has confirmed it.

    Each round decides again how far to draft: the seconds and tokens of a step are those measured, the agreement q is
    the mean of Beta(1 + agreed, 1 + differed). A round of k steps takes ((m - 1) a + t) / m seconds a step, where
    m = (1 - q^k) / (1 - q), for seconds a of a draft's and t of a target's step; `price` is the weight of tokens.

    Each turn is asked with the whole conversation before it, so calls grow with n^1.1 for n turns.

    With `expectile` the window is learnt during the run, by the paper's loss.

    Differs from the paper: the window comes of this formula, or of a linear regression on the rounds before and not of
    a language model that reads them, without the paper's offset; steps are compared by their calls and not by their
    text; no step of the target waits for an earlier one. Defaults: depth of 8, price 0, nothing learnt.
    """

    fidelity = Fidelity(
        "variant",
        "a formula or a regression in the place of the trained predictor, calls are compared",
        paper="2509.01920",
    )
    cost_exponent = 1.1

    answer_calls: ClassVar[tuple[str, ...]] = ("target",)
    opening_prompt: ClassVar[str] = "target"

    draft: CallConfig = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="A step of the model that steps ahead (`draft.model`; by default any, as for the target).",
    )
    target: CallConfig = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="A step of the target model, whose answer counts. Its template opens the prompt of both "
        "models, before their tools. Without tools, `stop` ends a step of both (by default the end of a line).",
    )
    depth: Depth = Field(default=8, ge=1)
    price: float = Field(
        default=0.0,
        ge=0.0,
        description="Seconds that a token given up, or of the draft, has to save. 0: save seconds whatever it "
        "costs; with 0.01 a hundred tokens more have to save a second.",
    )
    expectile: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Learn how far to draft from the rounds so far, in place of `price`. A round that went further "
        "than predicted weighs this much, another the rest of 1: above .5 it drafts more, sooner and at more tokens.",
    )
    rounds: Rounds = 32

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Take steps, round after round, until one is the answer."""
        talk = ToolConversation(ctx, question, self, thoughts=False)
        pace, done, windows = SpeculationRecord(), list[Turn](), list[int]()
        learned = None if self.expectile is None else LearnedWindow(self.expectile)
        while not done or not (done[-1].is_final or len(done) >= self.rounds):
            if done and done[-1].calls and not done[-1].results:
                done[-1] = await talk.observe(done[-1])
            await talk.make_room(done)
            window = pace.window(self.depth, self.price) if learned is None else learned.choose(self.depth)
            windows.append(min(window, self.rounds - len(done)))
            kept = await self._round(ctx, talk, pace, done, windows[-1])
            if learned is not None:
                learned.learn(len(kept), windows[-1])
            done += kept
        text = "".join(line.text for line in done) if not talk.functions else done[-1].text
        why = f"{len(done)} steps in {len(windows)} rounds of {', '.join(map(str, windows))}; {pace}"
        counts: dict[str, JsonValue] = {"drafted": pace.compared, "rejected": pace.compared - pace.agreed}
        return ctx.answer(text, why, data=counts, name="answer")

    async def _round(
        self, ctx: Context, talk: ToolConversation, pace: SpeculationRecord, done: Sequence[Turn], window: int
    ) -> list[Turn]:
        """Return the target's next steps after `done`: up to the first that the draft did not foresee, or `window`. The
        calls of the last one are not made yet."""
        began = ctx.now()
        line = self._ask(talk, done, self.target, "target")
        pace.asked += 1
        ahead = Ahead()
        guess = ctx.gather(self._draft_ahead(ctx, talk, pace, done, window, ahead)) if window > 1 else None
        await line
        pace.target.add(ctx.now() - began, line.tokens)
        turn = talk.read(line, done)
        agrees = ahead.turn is not None and talk.are_same(turn, ahead.turn)
        pace.compared += ahead.turn is not None
        pace.agreed += agrees
        if guess is None:
            return [turn]
        if not agrees or turn.is_final or not talk.is_free_of_effects(turn):
            ctx.cancel(guess, "the target does something else")
            return [turn]
        (rest,) = await guess
        return [turn if ahead.observed is None else ahead.observed, *rest]

    async def _draft_ahead(
        self,
        ctx: Context,
        talk: ToolConversation,
        pace: SpeculationRecord,
        done: Sequence[Turn],
        window: int,
        ahead: Ahead,
    ) -> list[Turn]:
        """Draft the step after `done`, and return the target's steps after it."""
        began = ctx.now()
        try:
            line = await self._ask(talk, done, self.draft, "draft")
        except StepFailed:
            return []
        turn = talk.read(line, done)
        ahead.turn = turn
        if turn.is_final or not talk.is_free_of_effects(turn):
            return []
        ahead.observed = await talk.observe(turn) if turn.calls else turn
        pace.draft.add(ctx.now() - began, line.tokens)
        return await self._round(ctx, talk, pace, [*done, ahead.observed], window - 1)

    def _ask(self, talk: ToolConversation, done: Sequence[Turn], prompt: CallConfig, who: str) -> Trajectory:
        # Both models have to end their steps at the same place, or no two steps would be equal.
        prompt = prompt.model_copy(update={"stop": self.target.stop})
        return talk.ask(done, prompt, label=f"{who}, step {len(done) + 1}")


@dataclass(slots=True)
class Ahead:
    """The draft's progress at one step."""

    turn: Turn | None = None
    observed: Turn | None = None


@dataclass(slots=True)
class Mean:
    """Seconds and tokens of a model's steps."""

    count: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, seconds: float, tokens: int) -> None:
        """Count a step."""
        self.count += 1
        self.seconds += seconds
        self.tokens += tokens

    def each(self) -> tuple[float, float]:
        """Return seconds and tokens of one step."""
        return self.seconds / self.count, self.tokens / self.count


@dataclass(slots=True)
class SpeculationRecord:
    """Statistics of a run so far."""

    agreed: int = 0
    compared: int = 0
    asked: int = 0
    """Steps that the target was asked for."""
    weighed: int = 0
    """Windows that were chosen."""
    draft: Mean = field(default_factory=Mean)
    target: Mean = field(default_factory=Mean)

    def __str__(self) -> str:
        return f"{self.agreed} of {self.compared} drafted steps were right; the target was asked {self.asked} times"

    def window(self, most: int, price: float) -> int:
        """Return the number of steps of the next round."""
        if price == 0 or most == 1:
            return most
        if not (self.draft.count and self.target.count):
            return 2  # one drafted step, to measure
        q = (1 + self.agreed) / (2 + self.compared)
        (a, draft_tokens), (t, target_tokens) = self.draft.each(), self.target.each()
        self.weighed += 1
        seldom = self.compared < _LEAST or self.weighed % _LEAST == 0  # it may have been bad luck
        return max(2 if seldom else 1, best_window(q, a, t, draft_tokens, target_tokens, price, most))


@dataclass(slots=True)
class LearnedWindow:
    """Predicts the steps that a round keeps, by a linear regression on the last round and a moving average in which it
    counts a fifth. The loss is |expectile - [u < 0]| u^2, for u = kept - predicted (arXiv 2509.01920)."""

    expectile: float
    features: list[float] = field(default_factory=lambda: [1.0, 0.0, 0.0])
    weights: list[float] = field(default_factory=lambda: [2.0, 0.0, 0.0])

    def predict(self) -> float:
        """Return the predicted number of steps that the next round keeps."""
        return sum(weight * feature for weight, feature in zip(self.weights, self.features, strict=True))

    def choose(self, most: int) -> int:
        """Return the number of steps of the next round; at least one is drafted, or nothing would be learnt."""
        return min(most, max(2, round(self.predict())))

    def learn(self, kept: int, window: int) -> None:
        """Learn from a round. One whose steps were all kept would have kept at least one more."""
        label = kept + (kept >= window)
        error = label - self.predict()
        weight_of_error = self.expectile if error > 0 else 1 - self.expectile
        share = 0.5 * weight_of_error * error / sum(feature**2 for feature in self.features)
        self.weights = [weight + share * feature for weight, feature in zip(self.weights, self.features, strict=True)]
        self.features = [1.0, float(label), self.features[2] + 0.2 * (label - self.features[2])]


def best_window(
    q: float, draft: float, target: float, draft_tokens: float, target_tokens: float, price: float, most: int
) -> int:
    """Return the number of steps of a round at which a step costs least: its seconds, plus `price` for each token that
    the target alone would not have generated. `draft` and `target` are the seconds of a step; `q` is how likely the two
    agree on one.
    """

    def cost(k: int) -> float:
        steps = sum(q**i for i in range(k))
        seconds = ((steps - 1) * draft + target) / steps
        tokens = 0.0
        for last in range(1, k + 1):  # the round's last step
            share = q ** (last - 1) * (1 - q if last < k else 1)
            begun = last + math.ceil(target / draft) - 1 if draft > 0 else k
            tokens += share * (min(k, begun) * target_tokens + min(k - 1, begun) * draft_tokens)
        return seconds + price * (tokens / steps - target_tokens)

    return min(range(1, most + 1), key=lambda k: (cost(k), k))
