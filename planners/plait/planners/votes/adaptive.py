"""Planner `adaptive`: run a few probes, then as many samples as an allocation finds worthwhile, and vote over all."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue, ValidationError

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, StepFailed, Trajectory
from plait.core.interfaces import Allocation, BranchSpec, Merge
from plait.core.ops import Plugin, Text
from plait.core.planning import derive
from plait.core.vocabulary import Allocate, Arithmetic, Early, MaxBranches, MergeOption, N, Rounds, Style, Width

from .._shared.steps import trajectory_code

__all__ = ["Adaptive"]


class Adaptive(Flow):
    """Samples one prompt and decides the number of samples after `n` probes. For a vote the lead of the first answer
    decides, again after further samples; with `merge=best-of` and a verifier, TTSPM decides (arXiv 2505.20522).

    The probes vote too. The allocation stays within the run's token budget and runs again on its request, up to
    `rounds` times. Failed samples are left out of the vote; the run fails only if all samples fail. The codes of
    arithmetic sampling are those of `max_branches` samples, in an order whose every prefix is spread evenly. So the
    probes and each later round are spread among all earlier samples. The allocation assumes independent samples; spread
    samples disagree more, so it ends a little later.

    Differs from the paper, which fits one success rate to a data set: here the rate is estimated for each request.
    Defaults: 4 probes, at most 32 samples, temperature 1, a majority vote. With these defaults a vote loses less than a
    point against all 32 samples, whether wrong answers scatter or repeat. Four equal answers end it; if answers
    scatter, most of the 32 samples are drawn.
    """

    fidelity = Fidelity("variant", "the rate is that of the request, not of a data set", paper="2505.20522")

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=512, temperature=1.0),
        description="The samples' calls, unless the allocation says something else. Their template has `{question}`.",
    )
    n: N = 4
    max_branches: MaxBranches = 32
    rounds: Rounds = 8
    allocate: Allocate = Plugin(name="by-saturation", options={"confidence": 0.95})
    style: Style = "serial"
    width: Width = 8
    merge: MergeOption = Plugin(name="majority")
    early: Early = False
    arithmetic: Arithmetic = False

    def size(self) -> int:
        """Return the maximum number of samples."""
        return max(self.n, self.max_branches)

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Sample the probes, add samples until the allocation requests no more, and vote over all samples."""
        samples = [self._sample(ctx, i, BranchSpec()) for i in range(1, min(self.n, self.max_branches) + 1)]
        merge = ctx.brief.plugin("merge", self.merge) if ctx.brief.plugins is not None else None
        vote = not (isinstance(merge, Merge) and merge.verifies)
        options: dict[str, JsonValue] = {"max_branches": self.max_branches, "vote": vote, **self.allocate.options}
        # The budget would end an allocation beyond it in the middle of its samples.
        if ctx.brief.request.budget.tokens is not None:
            options.setdefault("most_tokens", ctx.brief.request.budget.tokens)
        name = self.allocate.name
        allocate = Plugin(name=name, options=options)
        for number in range(1, self.rounds + 1):
            step = "allocation" if number == 1 else f"allocation-{number}"
            verdict = await ctx.join(samples, allocate, on_failure="any-end", name=step, label=name)
            if all(
                map(_ended_in_thoughts, samples)
            ):  # Further samples would be cut off too: the vote reports which limit to raise.
                break
            try:
                allocation = Allocation.model_validate(verdict.value)
            except ValidationError:
                raise PlannerError(f"{name!r} gave no allocation: `allocate` must name an Allocator") from None
            more = enumerate(allocation.branches, len(samples) + 1)
            samples += [self._sample(ctx, i, share) for i, share in more]
            if not allocation.again:
                break
        label = f"{self.merge.name} of {len(samples)}"
        return ctx.join(samples, self.merge, on_failure="best-effort", early=self.early, name="vote", label=label)

    def _sample(self, ctx: Context, index: int, share: BranchSpec) -> Trajectory:
        temperature = self.answer.temperature if share.temperature is None else share.temperature
        sampling = {"temperature": temperature, "model": share.model or self.answer.model}
        prompt = self.answer.model_copy(update=sampling)
        pieces = [*prompt.parts("{question}", question=ctx.brief.task.render(self.style, self.width))]
        if share.strategy:
            pieces.append(Text(text=f"\n\n{share.strategy}"))
        seed = ctx.brief.request.seed
        return ctx.think(
            pieces,
            prompt,
            name=f"sample-{index}",
            label=f"sample {index}",
            seed=derive(seed, "sample", index) if temperature != 0 else None,
            arithmetic=trajectory_code(seed, index, self.size()) if self.arithmetic and temperature != 0 else None,
        )


def _ended_in_thoughts(sample: Trajectory) -> bool:
    """Return whether a sample ended inside its reasoning."""
    return isinstance(sample.error, StepFailed) and sample.error.failure.kind == "CutInThoughts"
