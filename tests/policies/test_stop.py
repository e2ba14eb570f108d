"""The stop rules: each against a direct transcription on all small cases, and in the machine."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.core.errors import PluginError
from plait.core.events import Job
from plait.core.lengths import beta_mean, branches_needed, semantic_entropy
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.result import Failure
from plait.core.states import State
from plait.core.view import Branch
from plait.planners.votes.sample import Sample
from plait.policies._stopping import Poll, StopRule
from plait.policies.stop.confidence import Confident, Saturation, SemanticEntropy, secretary
from plait.policies.stop.votes import ESC, AdaptiveConsistency, FirstFinish, Futility, majority_probability
from plait.runtime.plugins.loader import Plugins
from plait_research.policies.prune.deepconf import DeepConfConsensus
from tests.planners.driving import Outcome, drive
from tests.policies.branches import LETTERS, branch, confident, ended, voter

LOSSY = [
    "adaptive-consistency",
    "esc",
    "semantic-entropy",
    "saturation",
    "deepconf-consensus:min_votes=3",
    "first-finish:votes=2",
]


def stops(rule: StopRule, answers: Sequence[str | None]) -> bool:
    """Whether a rule ends the vote; `None` is a branch that runs, `fail` one that failed."""
    return rule.enough(Poll(made_of(answers), LETTERS)) is not None


def made_of(answers: Sequence[str | None]) -> list[Branch]:
    states = {None: State.RUNNING, "fail": State.FAILED}
    return [
        ended(f"b{i}", states[a]) if a in states else branch(f"b{i}", a) for i, a in enumerate(answers)
    ]  # fmt: skip


def voted(answers: Sequence[str | None]) -> list[int]:
    """Counts of the answers, the highest first."""
    return sorted(Counter(a for a in answers if a not in (None, "fail", "?")).values(), reverse=True)


# --- formulas ---------------------------------------------------------------------------------------------------------


def by_integral(a: int, b: int) -> float:
    """P(p1 > p2) by integrating the polynomial x^a (1-x)^b, exactly."""

    def integral(low: Fraction) -> Fraction:
        return sum(
            (Fraction((-1) ** k * math.comb(b, k), a + k + 1) * (1 - low ** (a + k + 1)) for k in range(b + 1)),
            Fraction(0),
        )

    return float(integral(Fraction(1, 2)) / integral(Fraction(0)))


def test_the_closed_form_is_the_beta_integral() -> None:
    for a in range(25):
        for b in range(a + 1):
            assert majority_probability(a, b) == pytest.approx(by_integral(a, b), rel=1e-12)
    assert majority_probability(3, 0) == 0.9375
    assert majority_probability(4, 0) == 0.96875
    assert majority_probability(5, 1) == 0.9375
    assert majority_probability(3000, 2000) == 1.0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_semantic_entropy_is_numpys(counts: list[int]) -> None:
    p = np.array(counts) / np.sum(counts)
    expected = -(p * np.log(p)).sum() + (len(counts) - 1) / (2 * np.sum(counts))
    assert semantic_entropy(counts) == pytest.approx(expected, abs=1e-12)


@given(st.floats(0.001, 0.999), st.floats(0.0005, 0.5))
def test_saturation_is_where_the_next_branch_gains_too_little(p: float, epsilon: float) -> None:
    n, reached = branches_needed(p, epsilon), [1.0 - (1.0 - p) ** at for at in range(-1, 20_000)]
    assert reached[n + 2] - reached[n + 1] <= epsilon * (1 + 1e-9)
    assert n == 0 or reached[n + 1] - reached[n] >= epsilon * (1 - 1e-9)


def test_saturation_of_the_papers_examples() -> None:
    assert [branches_needed(p, 0.01) for p in (0.05, 0.1, 0.3, 0.5)] == [32, 22, 10, 6]
    assert branches_needed(0.001, 0.01) == 0 and branches_needed(1.0, 0.01) == 1


def test_the_posterior_is_the_mean_of_a_beta() -> None:
    grid = np.linspace(0, 1, 200_001)
    for good, bad in ((0, 0), (3, 0), (0, 4), (7, 2)):
        density = grid**good * (1 - grid) ** bad
        assert beta_mean(good, bad) == pytest.approx((grid * density).sum() / density.sum(), rel=1e-4)


@given(st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.1]), min_size=1, max_size=12), st.integers(1, 12))
def test_the_secretary_looks_first_and_then_takes_the_first_better_one(entropies: list[float], rounds: int) -> None:
    entropies = entropies[:rounds]
    looked = max(1, int(rounds / math.e))
    expected = None
    for at in range(looked, len(entropies)):
        if all(entropies[at] < seen for seen in entropies[:looked]):
            expected = at
            break
    assert secretary(entropies, rounds) == expected


# --- rules on every small case ----------------------------------------------------------------------------------------

Definition = Callable[[Sequence[str | None]], bool]


def by_adaptive_consistency(answers: Sequence[str | None]) -> bool:
    first, second, *_ = [*voted(answers), 0, 0]
    return first > second and by_integral(first, second) >= 0.8


def by_esc(answers: Sequence[str | None]) -> bool:
    blocks = [answers[i : i + 2] for i in range(0, len(answers) - 1, 2)]
    return any(block[0] in ("A", "B", "C") and set(block) == {block[0]} for block in blocks)


def by_entropy(answers: Sequence[str | None]) -> bool:
    counts = np.array(voted(answers))
    if counts.sum() < 3 or counts.max() < 3:
        return False
    p = counts / counts.sum()
    return -(p * np.log(p)).sum() + (len(counts) - 1) / (2 * counts.sum()) <= 0.7


def by_saturation(answers: Sequence[str | None]) -> bool:
    counts = voted(answers)
    n = sum(counts)
    if n < 2:
        return False
    p = (1 + counts[0]) / (2 + n)
    return p * (1 - p) ** n <= 0.05  # the gain of one more is already too little


def by_verified_saturation(answers: Sequence[str | None]) -> bool:
    good, bad = answers.count("A"), answers.count("b")
    p = (1 + good) / (2 + good + bad)
    return good + bad >= 2 and p * (1 - p) ** (good + bad) <= 0.05


def by_share(answers: Sequence[str | None]) -> bool:
    counts = voted(answers)
    return sum(counts) >= 3 and counts[0] / sum(counts) >= 0.75


def by_quorum(answers: Sequence[str | None]) -> bool:
    return max(voted(answers), default=0) >= 2


def by_futility(answers: Sequence[str | None]) -> bool:
    """Nobody has voted, and of all rates p of a Beta(1, 1 + n), by Bayes's rule, the mean is small."""
    return not voted(answers) and Fraction(1, 2 + answers.count("?")) <= Fraction(1, 5)


@pytest.mark.parametrize(
    ("rule", "definition", "letters"),
    [
        (FirstFinish(votes=2), by_quorum, "ABC"),
        (Futility(chance=0.2), by_futility, "ABC"),
        (AdaptiveConsistency(confidence=0.8), by_adaptive_consistency, "ABC"),
        (ESC(window=2), by_esc, "ABC"),
        (SemanticEntropy(entropy=0.7, min_votes=3), by_entropy, "ABC"),
        (Saturation(epsilon=0.05, min_votes=2), by_saturation, "ABC"),
        (Saturation(epsilon=0.05, min_votes=2, evidence="verifier"), by_verified_saturation, "Ab7"),
        (DeepConfConsensus(tau=0.75, min_votes=3), by_share, "ABC"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, StopRule) else "",
)
def test_a_rule_is_its_definition(rule: StopRule, definition: Definition, letters: str) -> None:
    """All ways in which five branches can stand."""
    seen = set()
    for answers in itertools.product([*letters, "?", "fail", None], repeat=5):
        expected = definition(answers)
        assert stops(rule, answers) is bool(expected), answers
        seen.add(bool(expected))
    assert seen == {True, False}


@given(st.lists(st.tuples(st.sampled_from("AB"), st.floats(0.1, 30)), min_size=3, max_size=9))
def test_the_consensus_weighs_by_confidence(votes: list[tuple[str, float]]) -> None:
    made = [voter(f"b{i}", answer, signals=confident(weight)) for i, (answer, weight) in enumerate(votes)]
    weights = np.array([weight for _, weight in votes])
    is_a = np.array([answer == "A" for answer, _ in votes])
    share = max(weights[is_a].sum(), weights[~is_a].sum()) / weights.sum()
    if abs(share - 0.8) > 1e-9:
        rule = DeepConfConsensus(tau=0.8, min_votes=3)
        assert (rule.enough(Poll(made, LETTERS)) is not None) is bool(share >= 0.8)
    assert DeepConfConsensus(tau=0.8, min_votes=10).enough(Poll(made, LETTERS)) is None


SURE = st.sampled_from([-2.0, -0.5, -0.1, None])


@given(st.lists(st.tuples(st.sampled_from("ABC"), SURE), min_size=1, max_size=7), st.integers(1, 2))
def test_one_sure_vote_ends_a_vote_that_its_answer_leads(votes: list[tuple[str, float | None]], least: int) -> None:
    made = [voter(f"b{i}", answer, logprob=sure) for i, (answer, sure) in enumerate(votes)]
    rule = Confident(threshold=-0.5, votes=least)
    if all(sure is None for _, sure in votes):
        with pytest.raises(PluginError, match="logprobs"):
            rule.enough(Poll(made, LETTERS))
        return
    counts = Counter(answer for answer, _ in votes)
    sure_votes = Counter(answer for answer, sure in votes if sure is not None and sure >= -0.5)
    expected = any(n >= least and counts[answer] == max(counts.values()) for answer, n in sure_votes.items())
    assert (rule.enough(Poll(made, LETTERS)) is not None) is expected


def test_who_is_sure_is_told_by_any_signal() -> None:
    made = [voter("b0", "A", logprob=-3.0, signals=confident(7.0, entropy=0.2, certainty=2.0))]
    for by, value in (("mean", 7.0), ("tail", 7.0), ("bottom", 7.0), ("lowest", 7.0), ("entropy", -0.2),
                      ("certainty", 2.0), ("logprob", -3.0)):  # fmt: skip
        for floor in (value, value + 0.01):
            rule = Confident.model_validate({"criterion": by, "threshold": floor})
            assert (rule.enough(Poll(made, LETTERS)) is not None) is (floor == value), by
    with pytest.raises(PluginError, match="certainty"):
        Confident(criterion="certainty").enough(Poll([voter("b0", "A", logprob=-3.0, signals=confident(7.0))], LETTERS))


def test_a_vote_that_is_given_up_has_no_answer() -> None:
    outcome = vote(["?"] * 12, ["futility:chance=0.2"], slots=3)
    assert len(outcome.contexts) == 3 and len(outcome.cancelled) == 9
    assert outcome.finish.result is not None and outcome.finish.result.value is None
    late = vote(["?", "?", "A", *["?"] * 9], ["futility:chance=0.2"], slots=1)
    assert len(late.contexts) == 12 and late.finish.result is not None and late.finish.result.value == "A"


def test_no_entropy_is_no_proof() -> None:
    assert not stops(SemanticEntropy(), ["A", "A"]) and not stops(SemanticEntropy(entropy=1.0), ["A", "A", "B", "B"])
    assert stops(SemanticEntropy(), ["A"] * 4)


def test_rounds_are_looked_at_in_order_and_whole() -> None:
    rule = SemanticEntropy(rule="secretary", window=2)
    scattered = ["A", "B"] * 2
    assert not stops(rule, [*scattered, None, "A", None, None])
    assert not stops(rule, [*scattered, "A", None, "A", "A"])
    assert stops(rule, [*scattered, "A", "A", None, None])
    assert not stops(rule, ["A", "A", "A", "A", "A", "A", None, None])  # none is better than the first


# --- in the machine ---------------------------------------------------------------------------------------------------


def request(*policies: str) -> Request:

    return Request(text="?", policies=tuple(map(Plugin.of, policies)))


def vote(
    answers: Sequence[str],
    policies: Sequence[str] = (),
    *,
    slots: int = 64,
    order: Sequence[int] = (),
    **options: object,
) -> Outcome:
    """Run a vote whose i-th sample answers answers[i]; `order` says which sample ends next."""

    def model(prompt: list[str], job: Job) -> str | Failure:
        said = answers[int(job.step.rpartition("-")[2]) - 1]
        return Failure(kind="WorkerError", message="no") if said == "fail" else said.replace("?", " ")  # no answer

    def pick(jobs: Sequence[Job]) -> int:
        there = [int(job.step.rpartition("-")[2]) - 1 for job in jobs]
        return next((there.index(i) for i in order if i in there), 0)

    planner = Sample.model_validate({"n": len(answers), **options})
    return drive(planner, request(*policies), model, slots=slots, pick=pick)


@pytest.mark.parametrize("policy", ["consensus", *LOSSY])
def test_queued_and_running_branches_are_stopped_alike(policy: str) -> None:
    outcome = vote(["A"] * 40, [policy], slots=12)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "A"
    ran = set(outcome.contexts)
    started = set(outcome.prompts)
    assert len(ran) + len(outcome.cancelled) == 40, "what did not run to its end was given up"
    assert started - ran and set(outcome.cancelled) - started, "some while they ran, some before they started"
    assert all(reason.startswith("vote is decided: ") for reason in outcome.cancelled.values())


@pytest.mark.parametrize("policy", LOSSY)
def test_joins_that_do_not_vote_are_left_alone(policy: str) -> None:
    outcome = vote(["A"] * 30, [policy], merge={"name": "collect"})
    assert not outcome.cancelled and len(outcome.contexts) == 30


def test_several_rules_together_stop_with_the_first() -> None:
    assert len(vote(["A"] * 20, ["esc", "adaptive-consistency"]).contexts) == 4
    assert len(vote(["A"] * 20, ["esc", "deepconf-consensus"]).contexts) == 5


ANSWER = st.sampled_from(["A", "A", "A", "B", "C", "?", "fail"])


@given(st.lists(ANSWER, min_size=1, max_size=9), st.randoms(use_true_random=False), st.integers(1, 9))
def test_a_lossless_stop_never_changes_the_verdict(answers: list[str], random, slots: int) -> None:
    order = list(range(len(answers)))
    random.shuffle(order)
    full = vote(answers, slots=slots, order=order)
    for outcome in (
        vote(answers, ["consensus"], slots=slots, order=order),
        vote(answers, slots=slots, order=order, early=True),
    ):
        assert outcome.finish.status == full.finish.status
        if full.finish.result is not None and outcome.finish.result is not None:
            assert outcome.finish.result.value == full.finish.result.value
        assert set(outcome.contexts) <= set(full.contexts)


@given(st.lists(ANSWER, min_size=1, max_size=9), st.randoms(use_true_random=False), st.sampled_from(LOSSY))
def test_a_rule_stops_at_the_first_moment_at_which_it_holds(answers: list[str], random, policy: str) -> None:
    """Counting as they come, in the machine, is the same as counting from scratch at every moment."""
    order = list(range(len(answers)))
    random.shuffle(order)
    rule = Plugins().policy(request(policy).policies[0])
    assert isinstance(rule, StopRule)
    so_far: list[str | None] = [None] * len(answers)
    expected = len(order)
    for count, i in enumerate(order, 1):
        so_far[i] = answers[i]
        if stops(rule, so_far):
            expected = count
            break
    outcome = vote(answers, [policy], order=order)
    heard = sum(answers[i] != "fail" for i in order[:expected])
    assert len(outcome.contexts) == heard and len(outcome.cancelled) == len(order) - expected


def test_a_plugin_of_each_rule_is_found_by_name() -> None:
    there = Plugins().names("policy")
    assert {"adaptive-consistency", "esc", "semantic-entropy", "saturation", "deepconf-consensus"} <= set(there)
    assert Plugins().policy(Plugin(name="esc", options={"window": 8})) == ESC(window=8)


@pytest.mark.parametrize(
    ("policy", "ran"), [("adaptive-consistency", 4), ("esc", 5), ("consensus", 21), ("first-finish", 1)]
)
def test_with_waves_what_is_not_needed_never_starts(policy: str, ran: int) -> None:
    outcome = vote(["A"] * 40, [policy, "waves:n=2"])
    assert len(outcome.contexts) == ran and len(outcome.prompts) <= ran + 1
    assert len(outcome.cancelled) == 40 - ran
