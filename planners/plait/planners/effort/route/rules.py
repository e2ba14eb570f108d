"""The decision list of `route`: it chooses a strategy from the answers of a few probes.

Sources: Adaptive-Consistency (arXiv 2305.11860) for agreement; the saturation model of test-time scaling (arXiv
2505.20522) for the number of samples with a verifier. The literature on serial against parallel reasoning contradicts
itself, so the order of the rules is our choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from plait.core.sampling_theory import beta_mean, branches_needed, majority_probability, votes_needed

from ..._shared.drafts import Draft

RATE = 20.0
"""Assumed tokens a second of one trajectory: a time limit is short if three calls do not fit."""
THREADS_FROM = 4096
"""Minimum number of remaining tokens for threads: below about one context they cost more than they gain."""
GAIN = 0.01
"""With a verifier: sampling ends when one more sample would gain less than this."""

Choice = Literal["probes", "vote", "best-of", "threads", "serial", "refine", "sequential"]


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """The remaining budget, and facts about the model."""

    tokens: int | None = None
    """Tokens that may still be generated; `None`: no limit."""
    seconds: float | None = None
    """Seconds of the whole run; `None`: no limit."""
    call_tokens: int = 1024
    """Token limit of one more call."""
    most: int = 16
    """Maximum number of samples, probes included."""
    words: bool = True
    """Whether the model can refine: it follows general instructions, not only the prompts of its training."""
    refinements: int = 0
    """Number of rounds in which the model refines one attempt; 0 if it gains nothing from reading its own attempts."""
    threads: bool = False
    """Whether the model can spawn threads."""
    confidence: float = 0.95
    """Probability from which the first answer's lead counts as sure."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Facts about the probes' answers."""

    probes: int
    answers: int
    """Number of probes with a short answer that can be counted."""
    first: int
    """Votes for the most frequent answer."""
    second: int
    right: bool
    """Whether an answer was verified."""
    judged: bool
    """Whether the task has a verifier that can judge the answers."""

    @classmethod
    def of(cls, drafts: Sequence[Draft], verifier: bool = False) -> Signs:
        """Count the answers of probes. `verifier`: the task has a verifier, even if there is no answer to judge."""
        votes: dict[str, int] = {}
        for draft in drafts:
            if draft.key is not None and draft.claim is not None:
                votes[draft.key] = votes.get(draft.key, 0) + 1
        counts = [*sorted(votes.values(), reverse=True), 0, 0]
        judged = any(draft.verified is not None for draft in drafts) or (verifier and not votes)
        right = any(draft.verified is True for draft in drafts)
        return cls(len(drafts), sum(votes.values()), counts[0], counts[1], right, judged)


Way = tuple[Choice, int, str]
"""A next step, its number of samples or rounds, and the reason."""


def decide(signs: Signs, limits: BudgetFacts) -> Way:
    """Return the next step of the first rule that holds."""
    return next(ways(signs, limits))


def ways(signs: Signs, limits: BudgetFacts) -> Iterator[Way]:
    """Yield the next steps of the rules that hold, in the order of the rules."""
    counts = f"{signs.first} of {signs.probes} probes agree"
    if signs.right:
        yield "probes", 0, "a probe is verified"
    if limits.tokens is not None and limits.tokens < min(64, limits.call_tokens):
        yield "probes", 0, f"{limits.tokens} tokens are left, too few for another call"
        return
    sure = majority_probability(signs.first, signs.second)
    if signs.answers and sure >= limits.confidence and not signs.judged:
        yield "probes", 0, f"{counts}, the first answer leads with probability {sure:.3f}"
    if limits.threads and (limits.tokens is None or limits.tokens >= THREADS_FROM):
        yield "threads", 0, "the model can spawn threads, and there are tokens for them"
    affordable = limits.most - signs.probes
    if limits.tokens is not None:
        affordable = min(affordable, limits.tokens // limits.call_tokens)
    if signs.judged:
        p = beta_mean(0, signs.probes)
        wanted = branches_needed(p, GAIN) - signs.probes
        more = max(1, min(wanted, affordable))
        reason = f"there is a verifier, and {signs.probes} wrong probes leave a success rate of about {p:.2f}"
        yield "best-of", more, f"{reason}: {more} more samples" + _limit_note(more, wanted)
    if _is_short(limits) and limits.words:
        yield "refine", 1, f"the time allows one more call: it reads all probes ({counts})"
    strong = limits.refinements > 0 and limits.words
    if signs.answers == 0 and limits.words:
        yield "refine", 1, "the probes are prose, which no vote can count: one call reads them all"
    if signs.answers == 0:
        yield "serial", 1, "no probe came to an answer: one deep attempt"
        return
    if signs.first == 1 and signs.answers > 1:
        if strong:
            yield "sequential", _rounds(limits), f"all {signs.answers} answers differ, and the model is strong"
        yield "serial", 1, f"all {signs.answers} answers differ: one deep attempt, not more of the same"
    if strong and limits.tokens is not None and affordable < limits.most - signs.probes:
        yield "sequential", _rounds(limits), "few tokens are left, and the model is strong"
    # A vote needs a clear lead. The number of samples until one is right does not predict a lead.
    wanted = votes_needed(signs.first, signs.second, limits.confidence, limits.most) - signs.first - signs.second
    more = max(0, min(wanted, affordable))
    if more == 0:
        yield "vote", 0, f"{counts}, not surely enough ({sure:.2f})" + _limit_note(more, wanted)
    else:
        yield "vote", more, f"{counts}, not surely enough ({sure:.2f}): {more} more samples" + _limit_note(more, wanted)
    yield "serial", 1, "one deep attempt"


def _is_short(limits: BudgetFacts) -> bool:
    """Return whether the time suffices for only one more call."""
    return limits.seconds is not None and limits.seconds * RATE < 3 * limits.call_tokens


def _rounds(limits: BudgetFacts) -> int:
    left = limits.refinements if limits.tokens is None else limits.tokens // limits.call_tokens
    return max(1, min(limits.refinements, left))


def _limit_note(more: int, wanted: int) -> str:
    return f" (of {wanted}, which the limits do not allow)" if more < wanted else ""
