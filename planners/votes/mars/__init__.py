"""Planner `mars`: a vote that ends while its lines are still being written, once their answers so far are safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from plait.core.flow import Answerable, Context, Flow, Line
from plait.core.ops import Plugin

from ..._shared.seeds import derive
from ..._shared.steps import OnePlugin
from .rule import Look, Seen, Switching, calibrated, leader, safe

__all__ = ["Mars"]


@dataclass(slots=True)
class _Sample:
    """One sample under way."""

    number: int
    line: Line | None = None
    """Its last part; `None` before the first, and if the first failed."""
    probe: Line | None = None
    """The question for its answer after that part."""
    looks: list[Look] = field(default_factory=list[Look])
    tokens: int = 0
    done: bool = False
    final: str | None = None

    @property
    def seen(self) -> Seen:
        return Seen(self.looks, self.final)


class Mars(Flow):
    """Margin-Adversarial Risk-controlled Stopping (MARS, arXiv 2606.12935).

    Samples are written `every` tokens at a time, and each unfinished one is then asked for its answer so far, in a few
    greedy tokens after its own context. The first `warmup` samples run to their ends: they teach how likely an answer
    so far is to change (a logistic regression on position, sureness, changes, looks since the last one and trend), and
    how much of the worst case to reckon with (`gamma`). All others end together, as soon as the first answer would stay
    first if those that are likely to change changed for the worst. What has ended votes, and so does what an unfinished
    sample said last.

    Differs from the authors' code: the warm-up votes too; the regression is not rescaled after its fit (Platt), which
    on the same few samples is nearly the identity. A question costs `probe_tokens` and its prefill for each look, which
    pays where samples are much longer than `every`. Defaults: 32 samples, 16 of them warm-up as in the paper, 500
    tokens between looks.
    """

    n_option: ClassVar[str | None] = "n"

    n: int = Field(default=32, ge=2)
    """Samples."""
    warmup: int = Field(default=16, ge=2)
    """Samples that run to their ends."""
    every: int = Field(default=500, ge=1)
    """Tokens between two looks."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens of a whole sample."""
    gamma: float | None = Field(default=None, ge=0.5, le=1.0)
    """Share of the worst case to reckon with; `null`: found out on the warm-up, for each question anew."""
    probe: str = "\n\nSo the answer is"
    """Text added to a sample to ask for its answer so far."""
    probe_tokens: int = Field(default=8, ge=1)
    """Most tokens of that answer."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Of the samples; probes are greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    merge: OnePlugin = Plugin(name="majority")
    """The merge of the vote."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Run the warm-up, then the others until they are safe; return the vote."""
        samples = [_Sample(i) for i in range(1, self.n + 1)]
        warm, rest = samples[: self.warmup], samples[self.warmup :]
        while await self._on(ctx, warm):
            pass
        taught = [each.seen for each in warm if each.line is not None]
        switching = Switching(taught)
        gamma = calibrated(taught, switching) if self.gamma is None else self.gamma
        reference = leader(Counter(seen.final for seen in taught if seen.final is not None))
        why, first = "all samples have ended", True
        while await self._on(ctx, rest):
            active = [(each.looks[-1].key, switching.of(each.seen)) for each in rest if not each.done]
            said = [each.final for each in samples if each.done] + [key for key, _ in active]
            votes = Counter(key for key in said if key is not None)
            if safe(votes, active, gamma) and (not first or leader(votes) == reference):
                why = f"{votes.most_common(1)[0][1]} of {sum(votes.values())} votes, safe from {len(active)} unfinished"
                break
            first = False
        voters = [each.line if each.done or each.probe is None else each.probe for each in samples]
        present = [each for each in voters if each is not None]
        return ctx.join(present, self.merge, tolerate="best-effort", name="vote", label=f"{self.merge.name}: {why}")

    async def _on(self, ctx: Context, samples: Sequence[_Sample]) -> bool:
        """Write the next part of each unfinished sample, and look at those that go on; return whether any does."""
        task = ctx.brief.task
        asked = [each for each in samples if not each.done]
        parts = [self._part(ctx, each) for each in asked]
        await ctx.gather(*parts, return_exceptions=True)
        for each, part in zip(asked, parts, strict=True):
            if not part.done:
                each.done = True  # its last part stands, if there is one
                continue
            each.line, each.tokens = part, each.tokens + part.tokens
            each.done = part.result.finish != "length" or each.tokens >= self.max_tokens
            if each.done:
                answer = task.extract(part.line)
                each.final = None if answer is None else task.key(answer)
        open_now = [each for each in asked if not each.done]
        probes = [self._probe(each) for each in open_now]
        await ctx.gather(*probes, return_exceptions=True)
        for each, probe in zip(open_now, probes, strict=True):
            each.probe = probe if probe.done else None
            answer = task.extract(probe.text) if probe.done else None
            sure = probe.logprob if probe.done else None
            each.looks.append(Look(None if answer is None else task.key(answer), sure or 0.0))
        return bool(open_now)

    def _part(self, ctx: Context, sample: _Sample) -> Line:
        number = len(sample.looks)
        prompt = [] if sample.line is not None else [ctx.brief.task.render()]
        think = ctx.think if sample.line is None else sample.line.think
        name = f"sample-{sample.number}" + (f"-{number + 1}" if number else "")
        return think(
            prompt,
            name=name,
            label=f"sample {sample.number}" + (f", part {number + 1}" if number else ""),
            max_tokens=min(self.every, self.max_tokens - sample.tokens),
            temperature=self.temperature,
            top_p=self.top_p,
            seed=derive(ctx.brief.request.seed, name) if self.temperature else None,
        )

    def _probe(self, sample: _Sample) -> Line:
        assert sample.line is not None
        number = len(sample.looks) + 1
        return sample.line.think(
            self.probe,
            name=f"probe-{sample.number}-{number}",
            label="answer so far",
            max_tokens=self.probe_tokens,
            logprobs=1,
        )
