"""Allocation `by-saturation`: estimate from a few probes how many further branches are worth their cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from plait.core.declarations import Fidelity, Free
from plait.core.interfaces import Allocation, Allocator, BranchSpec
from plait.core.lengths import beta_mean, branches_needed, votes_needed
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import read_roll, read_truth
from .._stopping import Poll

__all__ = ["BySaturation"]


class BySaturation(Allocator):
    """Chooses the number of branches by the kind of evidence from the probes:

    | evidence | number of branches |
    |---|---|
    | a verifier judged the probes, and will choose | N* of TTSPM (arXiv 2505.20522): one more gains at most `epsilon` |
    | answers to vote on | until the first answer leads with probability `confidence` (arXiv 2305.11860) |

    N* measures coverage: one right branch is enough when a verifier finds it. A vote needs a clear lead instead, so a
    4:4 split needs many more votes. The estimate assumes that further votes fall in the same proportions. When those
    branches have ended, the allocation runs again and adds branches if the proportions changed.

    N* is for 1 - (1-p)^N, with p the mean of the posterior Beta(1 + successes, 1 + failures); a probe
    without an answer failed. `evidence=share` is the paper's own rule: N* with the share of the first answer as p.
    `max_branches` and `most_tokens` cap the number.

    Branches take `temperatures` and `wordings` in turn.
    """

    fidelity = Fidelity("variant", "the request's own rate, for votes the rule of another paper", paper="2505.20522")

    epsilon: float = Field(default=0.01, gt=0.0, lt=1.0, description="Least gain that one more branch must bring.")
    evidence: Literal["auto", "agreement", "share", "verifier"] = Field(
        default="auto",
        description="What counts as a success. `auto`: `verifier` where the task's verifier judged a probe and the "
        "answers are not voted on, else `agreement`.",
    )
    confidence: float = Field(
        default=0.9,
        gt=0.5,
        lt=1.0,
        description="Probability at which something counts as sure: the first answer's lead, for `agreement`: 3 "
        "votes to none have 0.9375.",
    )
    temperatures: tuple[float, ...] = Field(
        default=(), description="Of the further branches, in turn; the planner's own by default."
    )
    wordings: Annotated[tuple[str, ...], Free()] = Field(
        default=(), description="Words for the prompts of the further branches, in turn; none by default."
    )

    def allocate(self, probes: Sequence[Branch], task: Task) -> Allocation:
        """Return the further branches; `why` has the estimate, N* and the limit that capped N*."""
        good, bad, how = self._evidence(probes, task)
        p = beta_mean(good, bad)
        needed = self._votes_needed(probes, task) if how == "agree" else branches_needed(p, self.epsilon)
        wanted = max(0, needed - len(probes))
        allowed = self.affordable(probes)
        count = min(wanted, allowed)
        reason = "are needed for a clear lead" if how == "agree" else "saturate"
        shown = "share the first answer" if how == "share" else how
        why = f"{good} of {good + bad} probes {shown}, p = {p:.3g}: {needed} branches {reason}, {count} more"
        if count < wanted:
            why += f" ({wanted} wanted)"
        branches = [
            BranchSpec(
                temperature=self.temperatures[i % len(self.temperatures)] if self.temperatures else None,
                strategy=self.wordings[i % len(self.wordings)] if self.wordings else "",
            )
            for i in range(count)
        ]
        return Allocation(branches=tuple(branches), why=why, again=how == "agree" and count > 0)

    def _evidence(self, probes: Sequence[Branch], task: Task) -> tuple[int, int, str]:
        """Return the number of successes, the number of failures and the kind of evidence."""
        vote = Poll(probes, task)
        truths = [read_truth(ballot.branch, task) for ballot in read_roll(probes, task).ballots]
        # A probe without an answer is as much evidence as a probe with a wrong answer: both are failures.
        silent = sum(probe.done for probe in probes) - len(truths)
        judged = len(truths) - truths.count(None)
        if self.evidence == "verifier" or (self.evidence == "auto" and judged and not self.vote):
            return truths.count(True), truths.count(False) + silent, "verified"
        first, _ = vote.lead()
        return first, len(truths) - first + silent, "share" if self.evidence == "share" else "agree"

    def _votes_needed(self, probes: Sequence[Branch], task: Task) -> int:
        """Return the number of branches for a clear lead: votes needed / share of branches with an answer."""
        poll = Poll(probes, task)
        first, second = poll.lead()
        # Probes beyond `max_branches` have run already: the limit holds for further branches only.
        most = max(self.max_branches, len(probes))
        votes = votes_needed(first, second, self.confidence, most)
        return min(most, len(probes) + math.ceil((votes - first - second) * len(probes) / max(1, poll.votes)))
