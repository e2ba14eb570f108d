"""Planner `takeover`: a draft model writes; the target model takes over the segments that it finds too unlikely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import Field, JsonValue, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Plugin
from plait.core.step_handles import StepHandle
from plait.core.vocabulary import MergeOption, N, Records, Rounds, Scorer, Threshold

from ..learning_planner import LearningPlanner, RunOutcome
from ._relay import Piece, Relay

__all__ = ["Takeover", "p_value"]

_KEPT = 400
"""Calibration scores of a round that are kept, the newest."""


class Takeover(LearningPlanner, Flow):
    """Asynchronous test-time scaling by rejection with a known rate (ATTS, arXiv 2509.15148).

    Each of `n` chains runs in rounds. The draft writes a segment and the scorer rates it on the target's behalf. If the
    score is low, the target rewrites the segment from its start. Chains do not wait for one another. A vote decides
    between their answers.

    A score is low if its p-value, `(1 + #{calibration scores <= its score}) / (m + 1)` over the m calibration scores of
    its round, is at most `threshold` (the paper's alpha). If the calibration comes from the same distribution, that is
    the share of all segments that the target rewrites. Later rounds differ, so calibration is kept by round, and `why`
    reports the share. Calibration scores come from runs on other requests (`answer.data["scores"]`), which `plait learn
    effort` makes. `records` holds them by round; rounds after the last use those of the last. Without records, a score
    below `threshold` is low, `why` says that nothing is calibrated, and `criterion=records` is refused.

    With `learn` each run adds to the records, and the next runs correct the share that was rewritten too much or too
    little so far, by round (`owed`): adaptive conformal inference (Gibbs and Candès, arXiv 2106.00170). It keeps the
    share also where requests change and a few of them write most of the segments.

    With `threshold=1` the target writes every segment, and the answer is the target's; with `threshold=0` the draft
    does.

    Differs from the published code: the p-value counts the segment itself, where theirs is #/m, so that it takes over
    less where few scores are known (9 % of the decisions differ with one score, 6 % with 4, 4 % with 16); the rejected
    segment is replaced, where there it stays in the context; calibration never uses the requests that are answered; a
    missing score means a take-over; a vote chooses the answer, where there any of 16 counts; by default one token of
    the target's rates a segment, which prefix caches serve (`scorer=perplexity`: the paper's); 4 chains, 30 rounds.
    """

    fidelity = Fidelity(
        "variant",
        "a rejected segment is replaced, its rank counts the segment itself: 12 of 200 decisions differ",
        oracles=("atts-takeover",),
        paper="2509.15148",
    )

    answer_calls: ClassVar[tuple[str, ...]] = ("draft", "target")
    pieces: ClassVar[bool] = True

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=200, temperature=0.8),
        description="A drafted segment, by the draft's `model`; by default any. Its template has `{question}`.",
    )
    target: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(),
        description="A segment that the target's `model` rewrites. Fields that are unset have the values of `draft`.",
    )
    criterion: Literal["records", "score"] | None = Field(
        default=None,
        description="Criterion. `records`: `threshold` is the share of drafted segments that the target takes over; "
        "it needs records. `score`: `threshold` is a score. By default `records` if there are any.",
    )
    n: N = Field(default=4, le=256)
    records: Records = ()
    owed: tuple[float, ...] = Field(
        default=(),
        description="Segments, by round, that should have been taken over so far and were not (below 0: that were "
        "in excess).",
    )
    threshold: Threshold = Field(default=0.4, ge=0.0, le=1.0)
    scorer: Scorer = Plugin(name="model")
    rounds: Rounds = Field(default=30, le=1000)
    merge: MergeOption = Plugin(name="majority")

    @model_validator(mode="after")
    def _is_calibrated(self) -> Self:
        if self.criterion == "records" and 0.0 < self.threshold < 1.0 and not any(self.records) and not self.learn:
            raise ValueError(
                "`criterion=records` promises that a share `threshold` is taken over, and there are no records of "
                "this task: make them with `plait learn effort TASK --planner takeover --problems FILE --out OUT` and "
                "give `path=OUT`, or say `criterion=score`"
            )
        return self

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Write the chains side by side, and vote."""
        relay, tally = (
            Relay(ctx, question, self.scorer, self.target.model),
            SegmentCounts(self._calibrated or not 0.0 < self.threshold < 1.0),
        )
        texts = await ctx.gather(
            *(self._chain(ctx, relay, tally, number) for number in range(1, self.n + 1)), return_exceptions=True
        )
        chains = [chain for chain in texts if isinstance(chain, StepHandle)]
        if not chains:
            raise next((error for error in texts if isinstance(error, BaseException)), PlannerError("no chain ended"))
        if len(chains) == 1:
            return ctx.answer(chains[0], str(tally), data=tally.data(), name="answer")
        vote = ctx.join(chains, self.merge, name="vote", label=f"{self.merge.name} of {len(chains)}")
        return ctx.answer(vote, str(tally), data=tally.data(), name="answer")

    async def _chain(self, ctx: Context, relay: Relay, tally: SegmentCounts, number: int) -> StepHandle[object]:
        """Write one chain, and return a step whose value is its text."""
        last: Piece | None = None
        for turn in range(self.rounds):
            piece: Piece | None = None
            if self.threshold < 1.0:
                piece = await relay.write(last, self.draft, f"draft {number}, segment {turn + 1}")
                score = await relay.score(piece)
                bad = self.threshold > 0.0 and self.takes_over(score, turn)
                tally.add(turn, score, bad)
                piece = None if bad else piece
            if piece is None:
                piece = await relay.write(last, self._target, f"target {number}, segment {turn + 1}")
            last = piece
            if piece.ended:
                break
        assert last is not None
        return ctx.answer(last.whole, name=f"chain-{number}", label=f"chain {number}")

    def takes_over(self, score: float | None, turn: int) -> bool:
        """Return whether the target takes over a segment of a score (`None`: unknown) in a round, from 0."""
        if score is None:
            return True
        if not self._calibrated:
            return score < self.threshold
        return p_value(score, self.records[min(turn, len(self.records) - 1)]) <= self._share(turn)

    @property
    def _calibrated(self) -> bool:
        return self.criterion != "score" and any(self.records)

    def _share(self, turn: int) -> float:
        """Return the share of the segments of a round to take over: the promise, and what is owed from earlier runs,
        which one run of `n` chains is to make good."""
        owed = self.owed[turn] / self.n if turn < len(self.owed) else 0.0
        return min(1.0, max(0.0, self.threshold + owed))

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the records with the scores of a run, and what is owed after it."""
        match outcome.data:
            case {"scores": list() as scores, "taken": list() as taken}:
                rounds = [[float(cast("float", score)) for score in cast("list[JsonValue]", of)] for of in scores]
                taken = [float(cast("float", count)) for count in taken]
            case _:
                return {}
        promise = Takeover.model_validate({**outcome.planner.options, "criterion": None}).threshold
        records = [list(of_round) for of_round in self.records]
        owed = list(self.owed)
        for turn, of_round in enumerate(rounds):
            if turn == len(records):
                records.append([])
            if turn == len(owed):
                owed.append(0.0)
            records[turn] = [*records[turn], *of_round][-_KEPT:]
            # Runs that calibrate promise nothing.
            if 0.0 < promise < 1.0 and self._calibrated:
                owed[turn] = round(owed[turn] + promise * len(of_round) - taken[turn], 6)
        return {"records": cast("JsonValue", records), "owed": cast("JsonValue", owed)}

    @property
    def _target(self) -> CallConfig:
        # a model of its own or any: the draft's is not the target's
        return self.target.over(self.draft).model_copy(update={"model": self.target.model})


@dataclass(slots=True)
class SegmentCounts:
    """What became of drafted segments, by round."""

    calibrated: bool = True
    scores: list[list[float]] = field(default_factory=list[list[float]])
    taken: list[int] = field(default_factory=list[int])
    unknown: int = 0

    def add(self, turn: int, score: float | None, taken: bool) -> None:
        """Count a segment."""
        while len(self.scores) <= turn:
            self.scores.append([])
            self.taken.append(0)
        self.taken[turn] += taken
        if score is None:
            self.unknown += 1
        else:
            self.scores[turn].append(round(score, 6))

    @property
    def drafted(self) -> int:
        """Segments that the draft wrote."""
        return sum(map(len, self.scores)) + self.unknown

    def data(self) -> dict[str, JsonValue]:
        """Return the counts, and the scores by round: what `records` takes."""
        scores: list[JsonValue] = [[*of_round] for of_round in self.scores]
        return {"drafted": self.drafted, "rejected": sum(self.taken), "unknown": self.unknown, "scores": scores,
                "taken": [*self.taken]}  # fmt: skip

    def __str__(self) -> str:
        if not self.drafted:
            return "the target wrote all"
        taken = sum(self.taken)
        share = f"{taken} of {self.drafted} drafted segments taken over ({taken / self.drafted:.0%})"
        share += f", {self.unknown} of unknown score" if self.unknown else ""
        return share if self.calibrated else f"{share}; not calibrated: the threshold is a mark, and no share"


def p_value(score: float, calibration: Sequence[float]) -> float:
    """Return the conformal p-value of a score: the share of the calibration scores that are no better, with the score
    itself counted in. Equal scores count, so that no more than the share that is asked for is taken over.

    >>> p_value(0.2, [0.1, 0.5, 0.9])
    0.5
    """
    return (1 + sum(other <= score for other in calibration)) / (len(calibration) + 1)
