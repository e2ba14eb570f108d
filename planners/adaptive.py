"""Planner `adaptive`: a few probes first, then as many samples as an allocation finds worth it, and a vote over all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, JsonValue, ValidationError

from plait.core.errors import PlannerError
from plait.core.interfaces import Allocation, BranchSpec, Brief, Planner, Reader
from plait.core.plan import Join, Plan, Plugin, Sampling, Step, Text, Think
from plait.core.result import Result

from ._shared.seeds import derive
from ._shared.steps import OnePlugin

__all__ = ["Adaptive"]


class Adaptive(Planner):
    """Samples of one prompt, their number decided after `probes` of them (by default as in TTSPM, arXiv 2505.20522, or,
    without a verifier, by the probes' agreement).

    The probes vote too. The allocation keeps within the run's token budget. Failed samples are left out of the vote;
    the run fails only if all of them do.

    Differs from the paper, which fits one success rate to a data set: here the rate is that of this request. Defaults:
    3 probes, 32 samples at most, temperature 1, a majority vote.
    """

    n_option: ClassVar[str | None] = "most"

    probes: int = Field(default=3, ge=1)
    """Samples before the allocation; the papers take 2 to 4."""
    most: int = Field(default=32, ge=1)
    """Most samples in all."""
    allocate: OnePlugin = Plugin(name="by-saturation")
    """The allocation, by name or as `{"name": …, "options": {…}}`."""
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
    stream: bool = False
    """Send the samples' text while the model writes it."""

    def start(self, brief: Brief) -> Plan:
        """Return the probes, `sample-1` … `sample-k`, and the join `allocation`, which expands into the rest."""
        count = min(self.probes, self.most)
        samples = [self._sample(brief, i, BranchSpec()) for i in range(1, count + 1)]
        names = tuple(sample.name for sample in samples)
        options: dict[str, JsonValue] = {"most": self.most, **self.allocate.options}
        if brief.request.budget.tokens is not None:
            options.setdefault("tokens", brief.request.budget.tokens)
        op = Join(merge=Plugin(name=self.allocate.name, options=options), tolerate="any-end")
        join = Step(name="allocation", op=op, needs=names, expands=True, label=self.allocate.name)
        return Plan(steps=(*samples, join), output="allocation")

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return the reader of `allocation`."""
        if step.name != "allocation":
            return super().reader(step, brief)
        return _Rest(self, step.needs, brief)

    def rest(self, allocation: Allocation, probes: tuple[str, ...], brief: Brief) -> Plan:
        """Return the samples that were allocated, and the vote over them and the probes."""
        first = len(probes) + 1
        samples = [self._sample(brief, i, share) for i, share in enumerate(allocation.branches, first)]
        names = (*probes, *(sample.name for sample in samples))
        op = Join(merge=self.merge, tolerate="best-effort", early=self.early)
        vote = Step(name="vote", op=op, needs=names, label=f"{self.merge.name} of {len(names)}")
        return Plan(steps=(*samples, vote), output="vote")

    def _sample(self, brief: Brief, index: int, share: BranchSpec) -> Step:
        temperature = self.temperature if share.temperature is None else share.temperature
        prompt = [Text(text=brief.task.render(self.style, self.width))]
        if share.strategy:
            prompt.append(Text(text=f"\n\n{share.strategy}"))
        sampling = Sampling(
            max_tokens=self.max_tokens,
            temperature=temperature,
            top_p=self.top_p,
            seed=derive(brief.request.seed, "sample", index) if temperature else None,
            logprobs=self.logprobs,
            window=self.window,
        )
        op = Think(
            prompt=tuple(prompt), chat=brief.task.chat(), sampling=sampling, stream=self.stream, model=share.model
        )
        return Step(name=f"sample-{index}", op=op, label=f"sample {index}")


class _Rest:
    """Reads an allocation."""

    def __init__(self, planner: Adaptive, probes: tuple[str, ...], brief: Brief) -> None:
        self.planner, self.probes, self.brief = planner, probes, brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan:
        try:
            allocation = Allocation.model_validate(result.value)
        except ValidationError:
            name = self.planner.allocate.name
            raise PlannerError(f"{name!r} gave no allocation: `allocate` must name an Allocator") from None
        return self.planner.rest(allocation, self.probes, self.brief)
