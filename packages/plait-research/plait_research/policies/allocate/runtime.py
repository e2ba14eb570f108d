"""Allocation `runtime`: predict from a few probes' lengths how many further branches end within a time."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Allocation, Allocator, BranchSpec
from plait.core.task import Task
from plait.core.view import Branch

from ...branch_runtimes import Branches, max_branches_within

__all__ = ["Runtime"]


class Runtime(Allocator):
    """Chooses the maximum number of branches that all end within `within` seconds at `confidence`. It uses
    order statistics of the probes' lengths (arXiv 2403.08790) and the pace of an engine that decodes all branches
    together: a step of n sequences takes `fixed + per_sequence * n` seconds. `plait simulate calibrate` fits both
    values. `max_branches` and `most_tokens` cap the number.

    Without an ended probe there is no prediction, and no branch follows.
    """

    fidelity = Fidelity("variant", "the empirical distribution, not a fitted family", paper="2403.08790")

    within: float = Field(default=10.0, gt=0.0, description="Seconds that the further branches may take.")
    confidence: float = Field(
        default=0.9, gt=0.0, lt=1.0, description="Probability at which something counts as sure: that they have."
    )
    fixed: float = Field(default=0.0025, gt=0.0, description="Seconds of a decoding step, however many sequences …")
    per_sequence: float = Field(default=0.0002, ge=0.0, description="… and more for each sequence.")

    def allocate(self, probes: Sequence[Branch], task: Task) -> Allocation:
        """Return the further branches; `why` has the predicted number and the limit that capped it."""
        # The length of a running probe is unknown; its tokens so far would make the estimate too short.
        lengths = [probe.tokens for probe in probes if probe.done and probe.tokens > 0]
        if not lengths:
            return Allocation(why="no probe has ended: nothing can be predicted")
        fits = max_branches_within(
            self.within,
            Branches(lengths),
            lambda sequences: self.fixed + self.per_sequence * sequences,
            quantile=self.confidence,
            most=self.max_branches,
        )
        count = min(fits, self.affordable(probes))
        why = f"{fits} branches end within {self.within:g} s, by the lengths of {len(lengths)} probes"
        if count < fits:
            why += f"; the limits allow {count}"
        return Allocation(branches=(BranchSpec(),) * count, why=why)
