"""Planners `single` (one model call answers the request), `sample` (independent samples side by side) and `adaptive`
(samples in rounds, until a vote is clear)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue, ValidationError

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, StepFailed, Trajectory
from plait.core.interfaces import Allocation, BranchSpec, Merge, Planner, PlanningContext
from plait.core.ops import Join, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.planning import call_model
from plait.core.vocabulary import Allocate, Arithmetic, Early, MaxBranches, MergeOption, N, Rounds, Style, Width

from .._shared.steps import derive, trajectory_code

__all__ = ["Adaptive", "Sample", "Single"]


class Single(Planner):
    """Calls the model once with the task's prompt and returns its text.

    Not a published method, but the baseline of the other planners. Defaults: the model's own temperature, 512 tokens.
    """

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=512), description="The call. Its template has `{question}`."
    )
    style: Style = "serial"
    width: Width = 8

    def start(self, brief: PlanningContext) -> Plan:
        """Return a plan of one step, `think`."""
        pieces = self.answer.parts("{question}", question=brief.task.render(self.style, self.width))
        seed = derive(brief.request.seed, "single")
        step = call_model(brief, "single", "think", pieces, self.answer, seed=seed, label="think")
        return _ONE_STEP.model_copy(update={"steps": (step,)})


_ONE_STEP = Plan.model_construct({"steps", "output"}, steps=(), output="think")


class Sample(Planner):
    """Self-consistency (Wang et al., arXiv 2203.11171) with `merge="majority"`, best-of-n with `merge="best-of"`.

    Failed samples are left out of the vote; the run fails only if all samples fail. Each sample is a separate model
    call, so that each can be stopped alone.

    Differs from the paper: answers are compared in the task's canonical form, ties have a rule, and the vote can end as
    soon as the outstanding samples cannot change it. Defaults: 8 samples, temperature 1, 512 tokens each.
    """

    fidelity = Fidelity(
        "variant", "answers are compared as the task has it, it ends when nothing can change", paper="2203.11171"
    )

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=512, temperature=1.0),
        description="The samples' calls. Their template has `{question}`. With `logprobs` of 1 the majority breaks "
        "ties by the mean; merges and prunings by confidence need 2 or more.",
    )
    n: N = 8
    style: Style = "serial"
    width: Width = 8
    merge: MergeOption = Plugin(name="majority")
    early: Early = False
    arithmetic: Arithmetic = False

    def start(self, brief: PlanningContext) -> Plan:
        """Return `sample-1` … `sample-n` and their join `vote`."""
        pieces = self.answer.parts("{question}", question=brief.task.render(self.style, self.width))
        names = tuple(f"sample-{i}" for i in range(1, self.n + 1))
        seed, sampled = brief.request.seed, self.answer.temperature != 0
        samples = [
            call_model(
                brief, "sample", name, pieces, self.answer, label=f"sample {i} of {self.n}",
                seed=derive(seed, "sample", i) if sampled else None,
                arithmetic=trajectory_code(seed, i, self.n) if self.arithmetic and sampled else None,
            )
            for i, name in enumerate(names, 1)
        ]  # fmt: skip
        vote = Join(merge=self.merge, on_failure="best-effort", early=self.early)
        join = Step(name="vote", op=vote, needs=names, label=f"{self.merge.name} of {self.n}")
        return Plan(steps=(*samples, join), output="vote")


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
