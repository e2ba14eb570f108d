"""Stop rule `saturation`: end the vote when one more branch would gain too little, by a model of coverage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.sampling_theory import beta_mean, branches_needed
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import read_truth
from .._stopping import Poll, StopRule

__all__ = ["Saturation"]


class Saturation(StopRule):
    """The saturation point of test-time scaling (TTSPM, arXiv 2505.20522), with the success rate learnt on the way.

    If a branch succeeds with probability p, n of them reach F(n) = ceiling * (1 - (1-p)^n), and the next is worth
    ceiling * p * (1-p)^n. The vote ends after N* branches, when the next is worth no more than `epsilon`: N* =
    ceil(ln(epsilon / (ceiling * p)) / ln(1-p)), or 0 if epsilon >= ceiling * p. p is the mean of a Beta(1 + successes,
    1 + failures) posterior. A success is a verified answer (`evidence=verifier`; branches that the task cannot judge do
    not count) or a vote for the first answer (`share`).

    It predicts how many branches are needed until one is right. With p below a half, a vote can get worse with more
    branches. `evidence=share` uses agreement instead of correctness.
    """

    fidelity = Fidelity("variant", "a posterior of the share, not one p for a data set", paper="2505.20522")

    epsilon: float = Field(default=0.01, gt=0.0, lt=1.0, description="Least gain that one more branch must bring.")
    ceiling: float = Field(
        default=1.0, gt=0.0, le=1.0, description="F_max: the share of problems that any number of branches would solve."
    )
    evidence: Literal["share", "verifier"] = Field(default="share", description="What counts as a success.")
    min_votes: int = Field(
        default=4,
        ge=1,
        description="Votes below which not to stop: branches with evidence; the paper's probes are 2 to 4.",
    )

    def enough(self, poll: Poll) -> str | None:
        """Return the estimate and the required number of branches as soon as that many have ended."""
        good, bad = self._evidence(poll)
        # With too few votes the prior alone would decide.
        if good + bad < self.min_votes:
            return None
        p = beta_mean(good, bad)
        needed = branches_needed(p, self.epsilon, self.ceiling)
        if good + bad < needed:
            return None
        return (
            f"{needed} branches saturate at a success rate of {p:.3g} ({good} of {good + bad}), gain {self.epsilon:g}"
        )

    def _evidence(self, poll: Poll) -> tuple[int, int]:
        if self.evidence == "share":
            first, _ = poll.lead()
            return first, poll.votes - first
        judged = poll.fold(self, lambda: _Verdicts(poll.task))
        return judged.right, judged.wrong


class _Verdicts:
    """Counts the branches with right and with wrong answers, by the verifier."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.right = self.wrong = 0

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        truth = read_truth(branch, self._task)
        self.right += truth is True
        self.wrong += truth is False
