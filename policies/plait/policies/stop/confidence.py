"""Stop rules that use the model's confidence in its votes (`cges`, `confident`), a model of coverage (`saturation`) or
the entropy of the answers (`semantic-entropy`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.errors import PluginError
from plait.core.lengths import beta_mean, branches_needed, semantic_entropy
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import AnswerPosterior, Signal, confidence_signal, read_truth, vote_confidence
from .._stopping import Poll, StopRule

__all__ = ["CGES", "Confident", "Saturation", "SemanticEntropy"]


class CGES(StopRule):
    """Confidence-Guided Early Stopping (arXiv 2511.02603): a posterior over the answers from the votes' confidence.

    A vote for answer A of confidence c has the likelihood c if A is right, and (1 - c) / (K - 1) if another of the K
    answers is; all have the same prior. K counts the answers seen and one unseen answer. The vote ends when an
    answer's posterior reaches `confidence`. c = exp(`criterion` / `vote_temperature`), by default the geometric mean of
    the tokens' probabilities.

    Differs from the paper, where the posterior also chooses the answer: here the vote's merge chooses, so by default
    the answer must also lead by votes. The merge `posterior` with `lead=false` is the paper's method. Needs `logprobs`
    of the planner.
    """

    fidelity = Fidelity("variant", "the answer must be first by votes too", paper="2511.02603")

    confidence: float = Field(
        default=0.99,
        gt=0.5,
        lt=1.0,
        description="Probability at which something counts as sure: the posterior at which to stop.",
    )
    criterion: Signal = Field(
        default="logprob",
        description="Criterion: a signal, in nats; only one that is never positive is a log-probability.",
    )
    vote_temperature: float = Field(
        default=0.33,
        gt=0.0,
        description="Temperature of the votes' confidence: below 1 it makes them less sure. Mean log-probabilities "
        "of tokens are surer than answers are: with 1 and a confidence of 0.95 a vote lost 4.5 points on one of four "
        "voters (study `erring-votes`).",
    )
    min_votes: int = Field(default=2, ge=1, description="Votes below which not to stop.")
    lead: bool = Field(default=True, description="Whether the answer must also be the first by votes.")

    def enough(self, poll: Poll) -> str | None:
        """Return the posterior as soon as it is high enough."""
        if poll.votes < self.min_votes:
            return None
        chances = poll.fold(self, lambda: _Chances(self)).posterior.chances()
        if not chances:
            return None
        best = max(chances, key=lambda key: chances[key])
        leads = not self.lead or poll.counts[best] == poll.lead()[0]
        enough = leads and chances[best] >= self.confidence
        return f"an answer has the posterior {chances[best]:.4g}" if enough else None


class _Chances:
    """The posterior of a running vote."""

    def __init__(self, rule: CGES) -> None:
        self._rule = rule
        self.posterior = AnswerPosterior()

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is not None and branch.done and branch.result is not None:
            self.posterior.add(
                key, vote_confidence(branch.result, self._rule.criterion, self._rule.vote_temperature), votes
            )


class Confident(StopRule):
    """Early stopping by confidence, as in Self-Calibration (Huang et al., arXiv 2503.00031): the vote ends when the
    model was sure of a branch's answer and no other answer has more votes.

    Differs from the paper, which trains a model to state its confidence: here confidence is a signal of the generation,
    by default the mean log-probability of the tokens (`logprobs=1` of the planner). The right threshold depends on
    model, temperature and task: choose it on answers that you can check. Use it beside `adaptive-consistency` or
    `first-finish` for votes without a sure branch. Voters without the signal do not end a vote; the run fails if no
    voter has it.
    """

    fidelity = Fidelity("variant", "a signal of the generation, not a trained statement", paper="2503.00031")

    criterion: Signal = Field(
        default="logprob", description="Criterion: a signal; of `entropy` low is sure, of all others high."
    )
    threshold: float = Field(
        default=-0.01,
        allow_inf_nan=False,
        description="Threshold of a score: the signal of a sure vote (of `entropy` its negative), in nats.",
    )
    votes: int = Field(default=1, ge=1, description="Votes for one answer at which to stop: sure ones.")

    def enough(self, poll: Poll) -> str | None:
        """Return the confidence as soon as it reaches the threshold."""
        sure = poll.fold(self, lambda: _Sure(self))
        # Without this error, a missing signal would look like a vote that is never sure.
        if sure.voters and not sure.said:
            raise PluginError(f"no branch says its {self.criterion}: ask for it with logprobs in the planner's options")
        # Another answer has more votes: the vote continues.
        if sure.most and sure.most == poll.lead()[0]:
            sureness = sure.values[sure.first]
            return f"{self.criterion} {sureness:.4g} of a voter for the first answer is at least {self.threshold:g}"
        return None


class _Sure:
    """The answers with sure votes."""

    def __init__(self, rule: Confident) -> None:
        self._rule = rule
        self.voters = 0
        self.said = False
        """Whether a voter has the signal."""
        self.most = 0
        """Highest number of votes of an answer with enough sure votes."""
        self.first = ""
        """Key of the answer with these votes."""
        self.values: dict[str, float] = {}
        """The surest vote's signal, by key of the answer."""
        self._votes: Counter[str] = Counter()
        self._sure: Counter[str] = Counter()

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        if key is None or not branch.done or branch.result is None:
            return
        rule = self._rule
        value = confidence_signal(branch.result, rule.criterion)
        self.voters += 1
        self.said = self.said or value is not None
        self._votes[key] += votes
        if value is not None and math.isfinite(value) and value >= rule.threshold:
            self._sure[key] += 1
            self.values[key] = max(value, self.values.get(key, value))
        if self._sure[key] >= rule.votes and self._votes[key] > self.most:
            self.most, self.first = self._votes[key], key


class Saturation(StopRule):
    """The saturation point of test-time scaling (TTSPM, arXiv 2505.20522), with the success rate learnt on the way.

    If a branch succeeds with probability p, n of them reach F(n) = 1 - (1-p)^n, and the next is worth p * (1-p)^n. The
    vote ends after N* branches, when the next is worth no more than `epsilon`: N* = ceil(ln(epsilon / p) / ln(1-p)), or
    0 if epsilon >= p. p is the mean of a Beta(1 + successes, 1 + failures) posterior. A success is
    a verified answer (`evidence=verifier`; branches that the task cannot judge do not count) or a vote for the first
    answer (`share`).

    It predicts how many branches are needed until one is right. With p below a half, a vote can get worse with more
    branches. `evidence=share` uses agreement instead of correctness.
    """

    fidelity = Fidelity("variant", "a posterior of the share, not one p for a data set", paper="2505.20522")

    epsilon: float = Field(default=0.01, gt=0.0, lt=1.0, description="Least gain that one more branch must bring.")
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
        needed = branches_needed(p, self.epsilon)
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


_TOP_VOTES = 3
"""Votes that the first answer needs for a stop by the threshold."""


class SemanticEntropy(StopRule):
    """Semantic entropy as in SEAT (arXiv 2507.06829), in nats. Equal answers form a class.

    SE = -sum of p_k ln p_k over the shares of the answers, plus Miller and Madow's (K - 1) / 2N for the entropy that N
    samples of K answers miss. Two rules:

    - `threshold`: stop at SE <= `entropy`, with at least `min_votes` votes and three for the first answer: a few equal
      votes prove little, as small models often agree on a wrong answer.
    - `secretary`, without a threshold: windows of `window` branches in the join's order are rounds. The first
      floor(R/e) of R rounds (at least one) only set the threshold; the vote ends at the first later round whose entropy
      is below theirs.

    In the study `erring-votes`, the threshold rule lost no accuracy against the full vote; `secretary` lost 1.2 points,
    and 5 points at one level of skill.

    The paper votes in the stopping round and its rounds read one another (`refine` with `stop_entropy` does that); here
    branches are independent and all finished ones vote. Its thresholds are not published: the default is ours.
    """

    fidelity = Fidelity("variant", "answers that are equal, not judged alike", paper="2507.06829")

    rule: Literal["threshold", "secretary"] = Field(default="threshold", description="Which of the two.")
    entropy: float = Field(default=0.4, ge=0.0, description="Most entropy at which to stop, in nats.")
    min_votes: int = Field(
        default=4, ge=2, description="Votes below which not to stop; without a meaning for `secretary`."
    )
    window: int = Field(default=8, ge=2, description="Branches in a round.")

    def enough(self, poll: Poll) -> str | None:
        """Return the entropy as soon as it is low enough."""
        if self.rule == "secretary":
            return self._by_rounds(poll)
        first, _ = poll.lead()
        if poll.votes < self.min_votes or first < _TOP_VOTES:
            return None
        entropy = semantic_entropy(list(poll.counts.values()))
        return f"semantic entropy {entropy:.4g} over {poll.votes} votes" if entropy <= self.entropy else None

    def _by_rounds(self, poll: Poll) -> str | None:
        told = poll.fold(self, lambda: _Rounds([branch.step for branch in poll.branches], self.window))
        stop = secretary(told.entropies, told.count)
        if stop is None:
            return None
        return f"round {stop + 1} of {told.count} has semantic entropy {told.entropies[stop]:.4g}"


class _Rounds:
    """The rounds of a vote, and the entropies of the ended rounds before the first unfinished one."""

    def __init__(self, steps: Sequence[str], size: int) -> None:
        self._places = {step: place for place, step in enumerate(steps)}
        self._size, self.count = size, len(steps) // size
        self._ended = [0] * (self.count + 1)
        self._counts: list[Counter[str]] = [Counter() for _ in self._ended]
        self.entropies: list[float] = []

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        at = self._places[branch.step] // self._size
        self._ended[at] += 1
        if key is not None:
            self._counts[at][key] += 1
        # Rounds are judged in order, so a later round that ends early waits.
        while len(self.entropies) < self.count and self._ended[len(self.entropies)] == self._size:
            counts = self._counts[len(self.entropies)]
            self.entropies.append(semantic_entropy(list(counts.values())) if counts else math.inf)


def secretary(entropies: Sequence[float], rounds: int) -> int | None:
    """Return the round (from 0) of `rounds` to stop at, or `None` if no known round qualifies yet.

    The first floor(rounds/e) rounds (at least one) only set the threshold; the vote ends after the last round anyway.
    """
    looked = max(1, math.floor(rounds / math.e))
    if len(entropies) <= looked:
        return None
    best = min(entropies[:looked])
    return next((at for at in range(looked, len(entropies)) if entropies[at] < best), None)
