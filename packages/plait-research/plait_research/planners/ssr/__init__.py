"""Planner `ssr`: a draft model writes steps along several strategies; the target model keeps or rewrites each step."""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, cast

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity, Free
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Plugin
from plait.core.step_handles import JoinHandle, Promise, StepFailed
from plait.core.values import Frozen
from plait.core.vocabulary import Depth, MergeOption, N, Quorum, Rounds, Scorer, Threshold

from ...learning_planner import LearningPlanner, RunOutcome
from .._relay import Piece, Relay

__all__ = ["SSR"]


TRUST = 4.0
"""Runs that a mark counts as much as."""
COVER = 0.3
"""What a tag that no chosen strategy has adds to a score in [0, 1]."""


class Strategy(Frozen):
    """A strategy for a problem."""

    id: str = Field(min_length=1)
    text: str = Field(min_length=1)
    """Text for the model."""
    tags: tuple[str, ...] = ()
    """Kinds that it belongs to."""
    wins: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Earlier runs with this strategy that gave a right answer."""
    losses: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """The others."""


_POOL = (
    ("cases", "structure", "Split the problem into cases and treat each of them."),
    ("backwards", "direction", "Work backwards from what is asked to what is given."),
    ("small", "pattern numbers", "Try small or extreme instances first, and look for a pattern."),
    ("equation", "algebra", "Name the unknowns, write equations, and solve them."),
    ("invariant", "numbers structure", "Look for a quantity that does not change, such as a parity or a remainder."),
    ("estimate", "check", "Estimate the answer and its bounds first, then make it exact."),
    ("count", "counting", "Count the same thing in two ways, or list the possibilities in order."),
    ("draw", "picture", "Describe the situation as a picture, a table or a diagram, and read the answer from it."),
    ("contradiction", "direction structure", "Assume the opposite, and follow it until something is wrong."),
    ("similar", "analogy", "Recall a similar problem whose solution is known, and carry it over."),
    ("subgoals", "structure direction", "Name intermediate results that would help, and reach them one after another."),
    ("check", "check", "Solve it in the plainest way, and put the result back into the problem to check it."),
)
POOL = tuple(Strategy(id=id_, text=text, tags=tuple(tags.split())) for id_, tags, text in _POOL)
"""Of no particular subject; give your own for a field that you know."""


def choose(
    pool: Sequence[Strategy],
    marks: Sequence[float | None],
    n: int,
    seed: int,
) -> list[Strategy]:
    """Return `n` strategies, best first: one after the other the one whose score, with `COVER` for each tag that none
    before it has, is largest. A pool that is smaller is taken again from its start.

    Args:
        pool: at least one. Without wins and losses the score of a strategy is its mark.
        marks: the target's, in [0, 1]; unknown ones count one half.
        seed: of the draws.
    """
    rng = random.Random(seed)
    scores: dict[int, float] = {}
    for place, (strategy, mark) in enumerate(zip(pool, marks, strict=True)):
        sure = 0.5 if mark is None else mark
        if strategy.wins or strategy.losses:
            sure = rng.betavariate(1 + strategy.wins + TRUST * sure, 1 + strategy.losses + TRUST * (1 - sure))
        scores[place] = sure
    chosen: list[int] = []
    left, tags = list(scores), set[str]()
    while left and len(chosen) < n:
        best = max(left, key=lambda place: (scores[place] + COVER * len(set(pool[place].tags) - tags), -place))
        chosen.append(best)
        left.remove(best)
        tags |= set(pool[best].tags)
    return [pool[chosen[i % len(chosen)]] for i in range(n)]


_USEFUL = (
    "{question}\n\nA way to go about it: {strategy}\nHow useful is that here, from 0 (useless) to 9 (decisive)? "
    "One digit:\n"
)
_ALONG = "\n\nGo about it in this way: {strategy}\n"
_MARKS = tuple("0123456789")
_HIGHEST = 9.0


class SSR(LearningPlanner, Flow):
    """Speculative parallel scaling of reasoning (SSR, arXiv 2505.15340), with steps verified in batches (Lookahead
    Reasoning, arXiv 2506.19830).

    The target scores the strategies of a pool for this request, one token each, and the best `n` get a path each. On a
    path the draft writes step after step, up to `depth` ahead, and the target marks each finished step from 0 to 9. The
    steps before the first mark below `threshold` are kept, and the target rewrites that step. A vote decides between
    the paths' answers.

    With `threshold` above 9 the target writes every step, and each path equals the target's own text; with 0 the draft
    writes all.

    Strategies are data: an id, a text, tags. plait chooses strategies with high scores together and different tags.
    With their `wins` and `losses` in earlier runs of a task the score is drawn from Beta(1 + wins + 4 m, 1 + losses + 4
    (1 - m)), where m is the mark in [0, 1] (Thompson sampling). Requests of a task with its own prompts, which takes no
    strategy, get `n` paths that differ by their seeds.

    The paper's pool, threshold and prompts were not available: these are ours, and 7 is the threshold that others
    quote. Defaults: 3 paths of 24 steps, a depth of 4, temperature 0.7.

    At each end of a step plait reviews the remaining paths, of which there are at most 64: its cost grows with
    n^1.3.
    """

    fidelity = Fidelity("variant", "our pool, prompts and threshold: theirs are not public", paper="2505.15340")
    cost_exponent = 1.3

    answer_calls: ClassVar[tuple[str, ...]] = ("draft", "target")
    pieces: ClassVar[bool] = True

    draft: Annotated[CallConfig, Uses("question", "strategy")] = Field(
        default=CallConfig(thinking="off", max_tokens=256, temperature=0.7, stop=("\n\n",)),
        description="A drafted step, by the draft's `model`; by default any. Its template has `{question}`, and may "
        "say where the text of the path's `{strategy}` stands: else it follows the question. `stop` ends a step.",
    )
    target: Annotated[CallConfig, Uses("question", "strategy")] = Field(
        default=CallConfig(thinking="off"),
        description="A step that the target's `model` writes. Unset fields have the values of `draft`.",
    )
    judge: Annotated[CallConfig, Uses("question", "strategy")] = Field(
        default=CallConfig(thinking="off"),
        description="The question how useful a strategy is, in one digit, to the target's model.",
    )
    n: N = Field(default=3, le=64)
    threshold: Threshold = Field(default=7.0, ge=0.0, le=10.0)
    depth: Depth = Field(default=4, ge=1, le=64)
    quorum: Quorum = Field(
        default=None,
        ge=1,
        description="Minimum number of finished branches; the rest are then cancelled. They must have the same "
        "answer: 1 takes the first path that ends, 2 the first two that agree. By default all.",
    )
    strategies: Annotated[tuple[Strategy, ...], Free()] = Field(
        default=POOL, description="The pool, with what is known of each; empty: paths differ by their seeds alone."
    )
    scorer: Scorer = Plugin(name="model")
    rounds: Rounds = Field(default=24, le=1000)
    merge: MergeOption = Plugin(name="majority")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Choose strategies, write the paths side by side, and vote."""
        chosen = await self._choose_strategies(ctx, question)
        counts = DraftRecord()
        paths = [
            ctx.gather(self._write_path(ctx, question, number, strategy, counts))
            for number, strategy in enumerate(chosen, 1)
        ]
        ended = await self._wait_for_quorum(ctx, paths)
        if not ended:
            raise next((path.error for path in paths if path.error is not None), PlannerError("no path ended"))
        ways = ", ".join(strategy.id for strategy in chosen if strategy is not None)
        if ways and not any(strategy.wins or strategy.losses for strategy in self.strategies):
            ways += " (not calibrated: nothing is known of earlier runs)"
        why = f"{counts}{f'; strategies: {ways}' if ways else ''}"
        counts.ways = [
            [strategy.id, ctx.brief.task.key(answer)]
            for path, strategy in zip(paths, chosen, strict=True)
            if strategy is not None and path.ended and path.error is None
            if (answer := ctx.brief.task.extract(path.outcome()[0].text)) is not None
        ]
        if len(ended) == 1:
            return ctx.answer(ended[0], why, data=counts.data(), name="answer")
        vote = ctx.join(ended, self.merge, name="vote", label=f"{self.merge.name} of {len(ended)}")
        return ctx.answer(vote, why, data=counts.data(), name="answer")

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the strategies with a run counted. If the run's answer is right, the paths that gave it win and the
        others lose. If it is wrong, the paths that gave it lose, and the others do not count.
        """
        match outcome.data:
            case {"paths": list() as paths} if outcome.right is not None and outcome.key is not None:
                ends = [cast("tuple[str, str]", path) for path in paths]
            case _:
                return {}
        wins, losses = defaultdict[str, float](float), defaultdict[str, float](float)
        for id_, key in ends:
            if key == outcome.key:
                wins[id_] += outcome.right
                losses[id_] += 1 - outcome.right
            else:
                losses[id_] += outcome.right
        counted = [
            strategy.model_copy(
                update={"wins": strategy.wins + wins[strategy.id], "losses": strategy.losses + losses[strategy.id]}
            )
            for strategy in self.strategies
        ]
        return {"strategies": [strategy.model_dump(mode="json") for strategy in counted]}

    async def _choose_strategies(self, ctx: Context, question: str) -> Sequence[Strategy | None]:
        """Return the strategies of the paths; `None` where a path has none."""
        if not self.strategies or not ctx.brief.task.chat():
            return [None] * self.n
        judge = self.judge.over(CallConfig(model=self.target.model))
        asked = [
            ctx.think(
                judge.parts(_USEFUL, question=question, strategy=strategy.text), judge, labels=_MARKS, label=strategy.id
            )
            for strategy in self.strategies
        ]
        await ctx.gather(*asked, return_exceptions=True)
        marks = [_expected_mark(line.labels) if line.done else None for line in asked]
        return choose(self.strategies, marks, self.n, ctx.random.randrange(1 << 52))

    async def _wait_for_quorum(self, ctx: Context, paths: Sequence[Promise[list[JoinHandle]]]) -> list[JoinHandle]:
        """Return the ended paths once `quorum` of them have the same answer; the others are cancelled."""
        task, left = ctx.brief.task, list(paths)
        ended: list[JoinHandle] = []
        while left:
            await ctx.first(_wait_for_end(path) for path in left)
            left = [path for path in left if not path.ended]
            # In the order of the paths, not of their ends: a tie of the vote goes to the first.
            ended = [step for path in paths if path.ended and path.error is None for step in path.outcome()]
            answers = [task.extract(path.text) for path in ended]
            votes = Counter(task.key(answer) for answer in answers if answer is not None)
            if self.quorum is not None and max(votes.values(), default=0) >= self.quorum:
                for path in left:
                    ctx.cancel(path, "enough paths have ended")
                break
        return ended

    async def _write_path(
        self, ctx: Context, question: str, number: int, strategy: Strategy | None, counts: DraftRecord
    ) -> JoinHandle:
        """Write one path, and return a step whose value is its text."""
        draft, target = (_with_strategy(prompt, strategy) for prompt in (self.draft, self._target))
        placed = "{strategy}" in (self.draft.template or "")
        along = "" if strategy is None or placed else _ALONG.format(strategy=strategy.text)
        relay = Relay(ctx, question + along, self.scorer, self.target.model)
        last: Piece | None = None
        while last is None or not (last.ended or last.number >= self.rounds):
            ahead = await self._draft_ahead(relay, draft, last, number) if self.threshold <= _HIGHEST else []
            stand = next((i for i, (_, mark) in enumerate(ahead) if mark < self.threshold), len(ahead))
            last = ahead[stand - 1][0] if stand else last
            counts.drafted += len(ahead)
            counts.kept += stand
            if stand < len(ahead) or not ahead:
                counts.rewritten += 1
                last = await relay.write(last, target, _label("target", number, last))
        text = "" if last is None else last.whole
        return await ctx.answer(text, name=f"path-{number}", label=strategy.id if strategy else f"path {number}")

    async def _draft_ahead(
        self, relay: Relay, draft: CallConfig, last: Piece | None, number: int
    ) -> list[tuple[Piece, float]]:
        """Draft steps behind another, each scored while the next is written; return them with their marks."""
        drafted: list[Piece] = []
        marks: list[Promise[list[float]]] = []
        while len(drafted) < self.depth and (last is None or last.number < self.rounds):
            last = await relay.write(last, draft, _label("draft", number, last))
            drafted.append(last)
            marks.append(relay.ctx.gather(self._mark(relay, last)))
            if last.ended or any(mark.ended and mark.outcome()[0] < self.threshold for mark in marks):
                break
        return [(piece, (await mark)[0]) for piece, mark in zip(drafted, marks, strict=True)]

    async def _mark(self, relay: Relay, piece: Piece) -> float:
        score = await relay.score(piece)
        return 0.0 if score is None else _HIGHEST * score

    @property
    def _target(self) -> CallConfig:
        # a model of its own or any: the draft's is not the target's
        return self.target.over(self.draft).model_copy(update={"model": self.target.model})


def _with_strategy(prompt: CallConfig, strategy: Strategy | None) -> CallConfig:
    """Return a prompt with the strategy in its template, where that has a place for it."""
    if prompt.template is None:
        return prompt
    template = prompt.template.replace("{strategy}", "" if strategy is None else strategy.text)
    return prompt.model_copy(update={"template": template})


def _label(who: str, number: int, before: Piece | None) -> str:
    return f"{who} {number}, step {1 if before is None else before.number + 1}"


@dataclass(slots=True)
class DraftRecord:
    """What became of the draft's steps."""

    drafted: int = 0
    kept: int = 0
    rewritten: int = 0
    ways: list[JsonValue] = field(default_factory=list[JsonValue])
    """Strategy and answer of each path that has one."""

    def data(self) -> dict[str, JsonValue]:
        """Return the counts for programs."""
        more: dict[str, JsonValue] = {"paths": self.ways} if self.ways else {}
        return {"drafted": self.drafted, "rejected": self.drafted - self.kept, "rewritten": self.rewritten, **more}

    def __str__(self) -> str:
        share = f" ({self.kept / self.drafted:.0%})" if self.drafted else ""
        return f"{self.kept} of {self.drafted} drafted steps stood{share}, the target wrote {self.rewritten}"


def _expected_mark(labels: dict[str, float]) -> float | None:
    """Return the expected mark in [0, 1]."""
    shares = {int(label): math.exp(logprob) for label, logprob in labels.items()}
    total = sum(shares.values())
    return sum(mark * share for mark, share in shares.items()) / total / _HIGHEST if total else None


async def _wait_for_end(path: Promise[list[JoinHandle]]) -> None:
    """Wait for the end of a path, however it ends."""
    with contextlib.suppress(StepFailed, PlannerError):
        await path
