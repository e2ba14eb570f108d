"""Allocation `by-saturation`: as many branches as pay, reckoned from how the probes went.

Decides how many, and which temperature, strategy and model each gets. It does not know how branches are planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from plait.core.interfaces import Allocation, Allocator, BranchSpec
from plait.core.sampling_theory import beta_mean, branches_needed
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import truth_of
from .._stopping import Poll

__all__ = ["BySaturation"]


class BySaturation(Allocator):
    """N* of TTSPM (arXiv 2505.20522): the fewest branches after which one more is worth no more than `epsilon`.

    p, the chance that one branch succeeds, is the mean of the posterior Beta(1 + successes, 1 + failures) over two to
    four probes: of being verified, or of giving the probes' first answer (`share`; with `auto` the verifier counts
    wherever it can judge). A probe without an answer failed. N* is for ceiling * (1 - (1-p)^N); see the stop rule
    `saturation`, which learns p on the way instead. `most` and `tokens` cap it.

    Branches take `temperatures` and `strategies` in turn. Of `models`, the easiest first, the one at the place 1 - p in
    the list is asked: so the harder the probes found it, the stronger the model.
    """

    epsilon: float = Field(default=0.01, gt=0.0, lt=1.0)
    """Least gain that one more branch must bring."""
    ceiling: float = Field(default=1.0, gt=0.0, le=1.0)
    """F_max: the share of problems that any number of branches would solve."""
    evidence: Literal["auto", "share", "verifier"] = "auto"
    """What counts as a success of a probe."""
    temperatures: tuple[float, ...] = ()
    """Of the further branches, in turn; the planner's own by default."""
    strategies: tuple[str, ...] = ()
    """Words for the prompts of the further branches, in turn; none by default."""
    models: tuple[str, ...] = ()
    """Models for the further branches, from the one for easy questions to the one for hard ones."""

    def allocate(self, probes: Sequence[Branch], task: Task) -> Allocation:
        """Return the further branches; `why` has the estimate, N* and what capped it."""
        good, bad, how = self._evidence(probes, task)
        p = beta_mean(good, bad)
        needed = branches_needed(p, self.epsilon, self.ceiling)
        wanted = max(0, needed - len(probes))
        allowed = self.affordable(probes)
        count = min(wanted, allowed)
        why = f"{good} of {good + bad} probes {how}, p = {p:.3g}: {needed} branches saturate, {count} more"
        if count < wanted:
            why += f" ({wanted} wanted)"
        model = self.models[min(int((1.0 - p) * len(self.models)), len(self.models) - 1)] if self.models else None
        shares = [
            BranchSpec(
                temperature=self.temperatures[i % len(self.temperatures)] if self.temperatures else None,
                strategy=self.strategies[i % len(self.strategies)] if self.strategies else "",
                model=model,
            )
            for i in range(count)
        ]
        return Allocation(branches=tuple(shares), why=f"{why}, model {model}" if model and count else why)

    def _evidence(self, probes: Sequence[Branch], task: Task) -> tuple[int, int, str]:
        """Return successes, failures and what they mean."""
        vote = Poll(probes, task)
        truths = [truth_of(ballot.branch, task) for ballot in vote.roll.ballots]
        silent = sum(probe.done for probe in probes) - len(truths)
        judged = len(truths) - truths.count(None)
        if self.evidence == "verifier" or (self.evidence == "auto" and judged):
            return truths.count(True), truths.count(False) + silent, "verified"
        first, _ = vote.lead()
        return first, len(truths) - first + silent, "agree"
