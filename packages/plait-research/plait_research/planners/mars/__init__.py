"""Planner `mars`: a vote that ends while its lines are still being written, once their answers so far are safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

from pydantic import Field, JsonValue, field_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context, Flow, Trajectory
from plait.core.ops import Plugin
from plait.core.vocabulary import MergeOption, N, Records, Warmup
from plait.planners._shared.steps import derive

from ...learning_planner import LearningPlanner, RunOutcome
from .rule import LineLooks, Look, SteadyVote, Switching, calibrate, find_leader, is_safe, to_features

__all__ = ["Mars"]

_OPEN, _CLOSE = "<think>", "</think>"
_KEPT = 2000
"""Looks that are kept, the newest."""
_IN_THOUGHTS = " There is no time left: I answer by what I have.\n</think>\n\n\\boxed{"


@dataclass(slots=True)
class _Sample:
    """One running sample."""

    number: int
    line: Trajectory | None = None
    """Its last part; `None` before the first, and if the first failed."""
    probe: Trajectory | None = None
    """The question for its answer after that part."""
    looks: list[Look] = field(default_factory=list[Look])
    tokens: int = 0
    done: bool = False
    final: str | None = None

    @property
    def seen(self) -> LineLooks:
        return LineLooks(self.looks, self.final)


class Mars(LearningPlanner, Flow):
    """Margin-Adversarial Risk-controlled Stopping (MARS, arXiv 2606.12935).

    Samples write in parts of `draft` tokens. After each part, a probe asks every unfinished sample for its answer so
    far, in a few greedy tokens behind its own context. The first `warmup` samples run to their ends. They train a
    logistic regression that predicts whether an answer so far will change (by position, confidence, changes, probes
    since the last change, and trend), and set how much of the worst case counts. All others stop together as soon as
    the first answer would stay first even if the answers that are likely to change changed for the worst. Finished
    samples vote with their answers, unfinished ones with their last probe.

    Differs from the authors' code: the warm-up votes too; a finished sample cannot change, where the authors give it
    the regression's probability; confidence comes from the probe, not from the sample's last tokens; the regression is
    not rescaled after its fit (Platt), which on the same few samples is nearly the identity. A probe costs the tokens
    of `probe` and its prefill, which pays where samples are much longer than a part. Defaults: 32 samples, 16 of them
    warm-up as in the paper, 500 tokens between probes.
    """

    fidelity = Fidelity(
        "variant",
        "the warm-up votes, and what has ended cannot switch",
        oracles=("mars-stop", "mars-gamma", "mars-switch", "parallel-probe"),
        paper="2606.12935",
    )
    lost_in = ("erring_votes",)

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=500),
        description="A part of a sample, between two looks; what it leaves open is as `answer` has it.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=4096, temperature=1.0),
        description="The samples; `max_tokens` are those of a whole one. Their template has `{question}`.",
    )
    probe: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off", max_tokens=8, temperature=0.0, logprobs=1),
        description="The question for a sample's answer so far, after what it has written. By default, where a "
        "text's thoughts are not over, it ends them and opens a box, as the authors' does.",
    )
    n: N = 32
    warmup: Warmup = Field(default=16, ge=2)
    criterion: Literal["safe", "steady"] = Field(
        default="safe",
        description="What decides when samples end. `safe`: the rule above. `steady`: that of Parallel-Probe, with "
        "which MARS' authors compare: all samples go on side by side, without a warm-up, those that disagree with the "
        "first answer for long are given up, and all end when it stays first.",
    )
    merge: MergeOption = Plugin(name="majority")
    records: Records = Field(
        default=(),
        description="Records of earlier runs, which set thresholds. Looks of lines that ended: five "
        "features and whether the line switched. They teach beside the warm-up, which may then be short (`warmup=4`).",
    )

    @field_validator("records")
    @classmethod
    def _looks(cls, records: Records) -> Records:
        if any(len(record) != 6 for record in records):
            raise ValueError("a record is five features of a look, and 1 where its line switched, else 0")
        return records

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Run the warm-up, then the others until they are safe; return the vote."""
        samples = [_Sample(i) for i in range(1, self.n + 1)]
        if self.criterion == "steady":
            return await self._steady(ctx, samples)
        warm, rest = samples[: self.warmup], samples[self.warmup :]
        while await self._advance(ctx, warm):
            pass
        taught = [sample.seen for sample in warm if sample.line is not None]
        switching = Switching(taught, self.records)
        gamma = calibrate(taught)
        reference = find_leader(Counter(seen.final for seen in taught if seen.final is not None))
        why, first = "all samples have ended", True
        while await self._advance(ctx, rest):
            active = [(sample.looks[-1].key, switching.of(sample.seen)) for sample in rest if not sample.done]
            answers = [sample.final for sample in samples if sample.done] + [key for key, _ in active]
            votes = Counter(key for key in answers if key is not None)
            if is_safe(votes, active, gamma) and (not first or find_leader(votes) == reference):
                why = f"{votes.most_common(1)[0][1]} of {sum(votes.values())} votes, safe from {len(active)} unfinished"
                break
            first = False
        return self._vote(ctx, samples, why)

    async def _steady(self, ctx: Context, samples: Sequence[_Sample]) -> Answerable:
        """Run all samples until their first answer stays first, without those that leave it; return the vote."""
        rule, why = SteadyVote(len(samples)), "all samples have ended"
        going = list(samples)
        while await self._advance(ctx, going):
            answers = [sample.final if sample.done else sample.looks[-1].key for sample in samples]
            over = rule.ends(answers)
            going = [sample for sample, left in zip(samples, rule.left, strict=True) if not left]
            if over:
                why = f"steady, {sum(not sample.done for sample in going)} unfinished"
                break
        return self._vote(ctx, going, f"{why}, {len(samples) - len(going)} given up" if going != samples else why)

    def _vote(self, ctx: Context, samples: Sequence[_Sample], why: str) -> Answerable:
        voters = [sample.line if sample.done or sample.probe is None else sample.probe for sample in samples]
        present = [voter for voter in voters if voter is not None]
        vote = ctx.join(present, self.merge, on_failure="best-effort", name="vote", label=f"{self.merge.name}: {why}")
        if not self.learn:
            return vote
        # What was stopped did not end in an answer, and teaches nothing.
        ended = [sample.seen for sample in samples if sample.done and sample.final is not None]
        return ctx.answer(vote, data={"looks": cast("JsonValue", to_features(ended))}, name="answered")

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the records with the looks of a run; whether its answer was right does not matter."""
        match outcome.data:
            case {"looks": [*looks]} if looks:
                made = [[float(cast("float", number)) for number in cast("list[JsonValue]", look)] for look in looks]
                return {"records": cast("JsonValue", [*map(list, self.records), *made][-_KEPT:])}
            case _:
                return {}

    async def _advance(self, ctx: Context, samples: Sequence[_Sample]) -> bool:
        """Write the next part of each unfinished sample and check those that continue; return whether any does."""
        task = ctx.brief.task
        asked = [sample for sample in samples if not sample.done]
        parts = [self._part(ctx, sample) for sample in asked]
        await ctx.gather(*parts, return_exceptions=True)
        for sample, part in zip(asked, parts, strict=True):
            if not part.done:
                sample.done = True  # its last part stands, if there is one
                continue
            sample.line, sample.tokens = part, sample.tokens + part.tokens
            sample.done = part.result.finish != "length" or sample.tokens >= self._whole
            if sample.done:
                answer = task.extract(part.line)
                sample.final = None if answer is None else task.key(answer)
        open_now = [sample for sample in asked if not sample.done]
        probes = [self._probe(sample) for sample in open_now]
        await ctx.gather(*probes, return_exceptions=True)
        for sample, probe in zip(open_now, probes, strict=True):
            sample.probe = probe if probe.done else None
            # what the question opened, such as a box, belongs to the answer
            answer = task.extract(self._question(sample) + probe.text) if probe.done else None
            sure = probe.logprob if probe.done else None
            sample.looks.append(Look(None if answer is None else task.key(answer), sure or 0.0))
        return bool(open_now)

    @property
    def _whole(self) -> int:
        return self.answer.max_tokens or 512

    def _part(self, ctx: Context, sample: _Sample) -> Trajectory:
        number, draft = len(sample.looks), self.draft.over(self.answer)
        pieces = draft.parts("{question}", question=ctx.brief.task.render()) if sample.line is None else ()
        think = ctx.think if sample.line is None else sample.line.think
        name = f"sample-{sample.number}" + (f"-{number + 1}" if number else "")
        return think(
            pieces,
            draft,
            name=name,
            label=f"sample {sample.number}" + (f", part {number + 1}" if number else ""),
            max_tokens=min(draft.max_tokens or self._whole, self._whole - sample.tokens),
            seed=derive(ctx.brief.request.seed, name) if draft.temperature != 0 else None,
        )

    def _question(self, sample: _Sample) -> str:
        """Return what a sample is asked, which ends its thoughts where it is in the midst of them."""
        thinks = sample.line is not None and sample.line.line.rfind(_OPEN) > sample.line.line.rfind(_CLOSE)
        return self.probe.text(_IN_THOUGHTS if thinks else "\n\nSo the answer is")

    def _probe(self, sample: _Sample) -> Trajectory:
        assert sample.line is not None
        number = len(sample.looks) + 1
        pieces = self._question(sample)
        return sample.line.think(pieces, self.probe, name=f"probe-{sample.number}-{number}", label="answer so far")
