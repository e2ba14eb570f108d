"""Stop rules that count votes: `first-finish`, `adaptive-consistency`, `esc`, `futility`, `sprt`."""

from __future__ import annotations

import math
from collections import Counter

from pydantic import Field, ValidationInfo, field_validator

from plait.core.declarations import Fidelity
from plait.core.lengths import beta_mean, majority_probability
from plait.core.view import Branch

from .._stopping import Poll, StopRule

__all__ = ["ESC", "SPRT", "AdaptiveConsistency", "FirstFinish", "Futility"]


class FirstFinish(StopRule):
    """First-Finish (ParaThinker, arXiv 2509.04475), as a quorum: the vote ends when an answer has `votes` votes.

    With one vote, the paper's rule, the first branch with an answer decides, so the vote is as good as one branch.
    Short answers win this race; the policy `waves:n=…` beside it makes the race smaller. See `adaptive-consistency`
    for a quorum that grows with the votes for other answers.
    """

    fidelity = Fidelity("formula", paper="2509.04475")

    votes: int = Field(default=1, ge=1, description="Votes for one answer at which to stop.")

    def enough(self, poll: Poll) -> str | None:
        """Return the number of votes as soon as it reaches the quorum."""
        first, _ = poll.lead()
        return f"{first} of {poll.votes} votes are for one answer" if first >= self.votes else None


class AdaptiveConsistency(StopRule):
    """Adaptive-Consistency (Aggarwal et al., arXiv 2305.11860) with its Beta criterion, in closed form.

    With a and b votes for the first and second answer, the probability that the first is more frequent than the second
    is 2^-(a+b+1) * sum of C(a+b+1, k) over k = 0..a. The vote ends when it reaches `confidence`, and running branches
    are cancelled. Branches count in the order in which they end, which favours short branches. The verdict can differ
    from the full vote's verdict; this risk is the price of the saved tokens.
    """

    fidelity = Fidelity("exact", oracles=("adaptive-consistency",), paper="2305.11860")

    confidence: float = Field(
        default=0.95,
        gt=0.5,
        lt=1.0,
        description="Probability at which something counts as sure, and the vote stops; 3 votes against none reach "
        "0.9375, 4 reach 0.969.",
    )
    min_votes: int = Field(default=1, ge=1, description="Votes below which not to stop.")

    def enough(self, poll: Poll) -> str | None:
        """Return the counts and the probability as soon as it is high enough."""
        first, second = poll.lead()
        if first == second or poll.votes < self.min_votes:
            return None
        sure = majority_probability(first, second)
        return f"{first} to {second} votes, probability {sure:.4g}" if sure >= self.confidence else None


class ESC(StopRule):
    """Early-Stopping Self-Consistency (Li et al., arXiv 2401.10480).

    The branches fall into windows of `window` in the join's order, so short answers have no advantage. When all
    branches of one window are done with the same answer (entropy 0), the vote over all finished branches ends. A branch
    that failed or has no answer keeps its window from being unanimous. With as many slots as a window the windows run
    one after another, as in the paper.
    """

    fidelity = Fidelity("exact", oracles=("esc",), paper="2401.10480")

    window: int = Field(default=5, ge=2, description="Branches in a round: the window; the paper uses 5 and 8.")

    def enough(self, poll: Poll) -> str | None:
        """Return the number of the first unanimous window, if there is one."""
        places = lambda: {branch.step: place for place, branch in enumerate(poll.branches)}  # noqa: E731
        agreed = poll.fold(self, lambda: _Windows(self.window, places())).agreed
        if not agreed:
            return None
        start = min(agreed) * self.window
        return f"branches {start + 1} to {start + self.window} agree"


class _Windows:
    """The windows of a vote."""

    def __init__(self, size: int, places: dict[str, int]) -> None:
        self._size, self._places = size, places
        self._counts: Counter[tuple[int, str]] = Counter()
        self.agreed: set[int] = set()
        """Numbers of the windows whose branches all have the same answer."""

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        # A branch without an answer keeps its window from being unanimous.
        if key is None:
            return
        window = self._places[branch.step] // self._size
        self._counts[window, key] += 1
        if self._counts[window, key] == self._size:
            self.agreed.add(window)


class Futility(StopRule):
    """Stopping for futility, as in sequential trials: after many branches without an answer, the next branch is
    unlikely to have one.

    After n branches without an answer, the next branch has an answer with probability 1 / (n + 2): the posterior
    Beta(1, 1 + n) in the saturation model (TTSPM, arXiv 2505.20522). The vote ends without an answer when this is at
    most `chance`; 0.02 is 48 branches. The rule is inactive once there is a vote, so combine it with another rule.
    Failed branches do not count. The cost: a question that one branch in a hundred answers is lost.
    """

    fidelity = Fidelity("idea", paper="2505.20522")

    chance: float = Field(default=0.02, gt=0.0, lt=0.5, description="Highest chance of an answer at which to give up.")

    def enough(self, poll: Poll) -> str | None:
        """Return the probability if it is low enough and there is no vote."""
        if poll.votes:
            return None
        silent = poll.fold(self, _Silent).count
        chance = beta_mean(0, silent)
        return f"none of {silent} branches has an answer, chance {chance:.3g}" if chance <= self.chance else None


class _Silent:
    """Counts the finished branches without an answer."""

    count = 0

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        self.count += branch.done and key is None


class SPRT(StopRule):
    """Wald's sequential probability ratio test, as ConSol uses it (arXiv 2503.17587).

    Among the a votes for the first answer and the b votes for the second, the share of the first is 1/2 (no winner) or
    `share`. The vote ends when a ln(2 share) + b ln(2 - 2 share) reaches ln((1 - beta) / alpha).

    Differs from the authors' code (`consol`): the test never ends with "no answer wins", as the full vote then still
    has a verdict. Branches count in the order in which they end. `share` is ours; with it 6 votes to none end the vote,
    or 8 to 1. Their released settings, `share=0.5001,beta=0.949976`, come to a lead of three votes, and so does their
    mixture test (a prior Beta(10^6, 10^6) cut at 1/2).
    """

    fidelity = Fidelity("variant", "that no answer wins is never concluded", paper="2503.17587")

    share: float = Field(
        default=0.9,
        gt=0.5,
        lt=1.0,
        description="Share of the leading answer in the votes for the first two, under the hypothesis that it wins.",
    )
    alpha: float = Field(default=0.05, gt=0.0, lt=0.5, description="Chance of a false winner.")
    beta: float = Field(
        default=0.05, gt=0.0, lt=1.0, description="Chance of missing one; alpha and beta together are less than 1."
    )

    @field_validator("beta")
    @classmethod
    def _test(cls, beta: float, info: ValidationInfo) -> float:
        alpha = info.data.get("alpha", 0.0)
        if alpha + beta >= 1.0:
            raise ValueError(f"{beta} and alpha {alpha} come to 1 or more, and test nothing: make one of them smaller")
        return beta

    def enough(self, poll: Poll) -> str | None:
        """Return the test statistic as soon as it is high enough."""
        first, second = poll.lead()
        ratio = first * math.log(2 * self.share) + second * math.log(2 - 2 * self.share)
        least = math.log((1 - self.beta) / self.alpha)
        return f"{first} to {second} votes, log-likelihood ratio {ratio:.4g}" if ratio >= least else None
