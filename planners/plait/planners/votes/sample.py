"""Planner `sample`: draw n independent samples of one prompt, and merge them into one answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.interfaces import Planner, PlanningContext
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import call_model
from plait.core.vocabulary import Arithmetic, Early, MergeOption, N, Style, Width

from .._shared.steps import derive, trajectory_code

__all__ = ["Sample"]


class Sample(Planner):
    """Self-consistency (Wang et al., arXiv 2203.11171) with `merge="majority"`, best-of-n with `merge="best-of"`.

    Failed samples are left out of the vote; the run fails only if all samples fail. Each sample is a separate model
    call, so that each can be stopped alone. `n=auto` takes as many samples as end within the run's `seconds`, according
    to `plait simulate calibrate`.

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
