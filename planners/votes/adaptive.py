"""Planner `adaptive`: a few probes first, then as many samples as an allocation finds worth it, and a vote over all."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue, ValidationError

from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, Line
from plait.core.interfaces import Allocation, BranchSpec, Merge
from plait.core.ops import Plugin
from plait.core.planning import derive

from .._shared.seeds import line_code
from .._shared.steps import OnePlugin

__all__ = ["Adaptive"]


class Adaptive(Flow):
    """Samples of one prompt, their number decided after `probes` of them: for a vote by how clearly the first answer
    leads, and again when more have ended; with `merge=best-of` and a verifier as in TTSPM (arXiv 2505.20522).

    The probes vote too. The allocation keeps within the run's token budget. Failed samples are left out of the vote;
    the run fails only if all of them do.

    Differs from the paper, which fits one success rate to a data set: here the rate is that of this request. Defaults:
    4 probes, 32 samples at most, temperature 1, a majority vote. With these a vote loses less than a point to that of
    all 32 samples, whether wrong answers scatter or repeat; four equal answers end it, and where they scatter most of
    the 32 are drawn.
    """

    n_option: ClassVar[str | None] = "most"

    probes: int = Field(default=4, ge=1)
    """Samples before the allocation; the papers take 2 to 4."""
    most: int = Field(default=32, ge=1)
    """Most samples in all."""
    allocate: OnePlugin = Plugin(name="by-saturation", options={"confidence": 0.95})
    """The allocation, by name or as `{"name": …, "options": {…}}`."""
    rounds: int = Field(default=8, ge=1)
    """Most times that the allocation is asked, where it wants to be asked again (`Allocation.again`)."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Temperature of the samples, unless the allocation names one; 0 is greedy, and makes them the same."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens to generate in one sample."""
    style: Literal["serial", "direct"] = "serial"
    """Mode of answering that the prompt asks for."""
    width: int = Field(default=8, ge=1)
    """Branches that one sample may try, where the task's prompt says so."""
    merge: OnePlugin = Plugin(name="majority")
    """The merge of the vote."""
    early: bool = False
    """Close the vote as soon as its verdict is certain."""
    logprobs: int = Field(default=0, ge=-1)
    """`Sampling.logprobs` of the samples."""
    window: int = Field(default=0, ge=0)
    """`Sampling.window` of the samples."""
    arithmetic: bool = False
    """Arithmetic sampling, as of the planner `sample`. The codes are those of `most` samples in an order whose every
    beginning is spread, so the probes and each round after them are spread among all that were drawn before. An
    allocation takes samples for independent: spread ones disagree more, so it ends a little later."""
    stream: bool = False
    """Send the samples' text while the model writes it."""

    def size(self) -> int:
        """Return how many samples there may be."""
        return max(self.probes, self.most)

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Sample the probes, ask the allocation, sample what it says until it wants no more, and vote over all."""
        samples = [self._sample(ctx, i, BranchSpec()) for i in range(1, min(self.probes, self.most) + 1)]
        merge = ctx.brief.plugin("merge", self.merge) if ctx.brief.plugins is not None else None
        vote = not (isinstance(merge, Merge) and merge.verifies)
        options: dict[str, JsonValue] = {"most": self.most, "vote": vote, **self.allocate.options}
        if ctx.brief.request.budget.tokens is not None:
            options.setdefault("tokens", ctx.brief.request.budget.tokens)
        name = self.allocate.name
        allocate = Plugin(name=name, options=options)
        for number in range(1, self.rounds + 1):
            step = "allocation" if number == 1 else f"allocation-{number}"
            said = await ctx.join(samples, allocate, tolerate="any-end", name=step, label=name)
            try:
                allocation = Allocation.model_validate(said.value)
            except ValidationError:
                raise PlannerError(f"{name!r} gave no allocation: `allocate` must name an Allocator") from None
            more = enumerate(allocation.branches, len(samples) + 1)
            samples += [self._sample(ctx, i, share) for i, share in more]
            if not allocation.again:
                break
        label = f"{self.merge.name} of {len(samples)}"
        return ctx.join(samples, self.merge, tolerate="best-effort", early=self.early, name="vote", label=label)

    def _sample(self, ctx: Context, index: int, share: BranchSpec) -> Line:
        temperature = self.temperature if share.temperature is None else share.temperature
        coded = self.arithmetic and bool(temperature)
        prompt = [ctx.brief.task.render(self.style, self.width)]
        if share.strategy:
            prompt.append(f"\n\n{share.strategy}")
        return ctx.think(
            prompt,
            name=f"sample-{index}",
            label=f"sample {index}",
            max_tokens=self.max_tokens,
            temperature=temperature,
            top_p=self.top_p,
            seed=derive(ctx.brief.request.seed, "sample", index) if temperature else None,
            logprobs=self.logprobs,
            window=self.window,
            arithmetic=line_code(ctx.brief.request.seed, index, self.size()) if coded else None,
            stream=self.stream,
            model=share.model,
        )
