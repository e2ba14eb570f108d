"""The merges that weigh votes, against direct numpy transcriptions of their formulas on random inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from plait.core.addresses import allow
from plait.core.errors import PluginError
from plait.core.interfaces import Merge
from plait.core.result import Signals
from plait.core.states import State
from plait.core.view import Branch
from plait.policies._ballots import percentile
from plait.policies.merge.best import BestScored
from plait.policies.merge.votes import InverseEntropy, Majority, SelfCertainty, Weighted
from plait_research.policies.merge.groups import ShortestMajority
from tests.policies.branches import LETTERS, branch, branches, confident, ended, voter

FIGURE = st.floats(0.01, 40.0, allow_nan=False)


@st.composite
def voters(draw: st.DrawFn) -> list[Branch]:
    """Some voters with random lengths and signals."""
    made: list[Branch] = []
    for i in range(draw(st.integers(1, 9))):
        signals = Signals(
            k=20, window=8, confidence=draw(FIGURE), tail=draw(FIGURE), bottom=draw(FIGURE), lowest=draw(FIGURE),
            entropy=draw(st.floats(0.0, 5.0)), certainty=draw(FIGURE),
        )  # fmt: skip
        answer = draw(st.sampled_from("ABC"))
        tokens = draw(st.integers(1, 5000))
        made.append(voter(f"b{i}", answer, tokens=tokens, logprob=-draw(FIGURE), signals=signals))
    return made


def arrays(made: list[Branch]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    answers = np.array([each.result.text for each in made if each.result])
    names = ("confidence", "tail", "bottom", "lowest", "entropy", "certainty")
    columns = {name: np.array([getattr(each.result.signals, name) for each in made]) for name in names}
    columns["tokens"] = np.array([each.tokens for each in made], dtype=float)
    columns["logprob"] = np.array([each.result.logprob for each in made if each.result])
    return answers, columns


def heaviest(answers: np.ndarray, weights: np.ndarray) -> str:
    """The answer with the largest sum; inputs with (nearly) equal sums are left out, ties having tests of their own."""
    sums = {answer: weights[answers == answer].sum() for answer in np.unique(answers)}
    ordered = sorted(sums.values())
    assume(len(ordered) < 2 or ordered[-1] - ordered[-2] > 1e-9 * ordered[-1])
    return str(max(sums, key=lambda answer: sums[answer]))


@given(voters(), st.sampled_from(["mean", "tail", "bottom", "lowest"]), st.sampled_from([100.0, 90.0, 50.0, 10.0]))
def test_weighted_by_confidence(made: list[Branch], by: str, eta: float) -> None:
    answers, columns = arrays(made)
    scores = columns["confidence" if by == "mean" else by]
    keep = scores >= np.percentile(scores, 100 - eta)
    expected = heaviest(answers[keep], scores[keep])
    assert Weighted.model_validate({"criterion": by, "eta": eta, "cap": None}).merge(made, LETTERS).value == expected


@given(voters(), st.sampled_from([1.0, 2.0, 4.0]))
def test_weighted_with_a_cap(made: list[Branch], cap: float) -> None:
    answers, columns = arrays(made)
    middle = np.median(columns["tail"])
    expected = heaviest(answers, np.clip(columns["tail"], middle / cap, middle * cap))
    assert Weighted(cap=cap).merge(made, LETTERS).value == expected


@given(voters(), st.integers(1, 12))
def test_weighted_with_the_threshold_of_a_warm_up(made: list[Branch], warmup: int) -> None:
    answers, columns = arrays(made)
    keep = columns["lowest"] >= np.percentile(columns["lowest"][:warmup], 90)
    expected = heaviest(answers[keep], columns["lowest"][keep])
    merge = Weighted(criterion="lowest", eta=10, warmup=warmup, cap=None)
    assert merge.merge(made, LETTERS).value == expected


@given(voters(), st.sampled_from([0.0, 1.0, 1.2, 3.0]))
def test_self_certainty_with_borda(made: list[Branch], p: float) -> None:
    answers, columns = arrays(made)
    n = len(made)
    rank = np.empty(n)
    rank[np.argsort(-columns["certainty"], kind="stable")] = np.arange(1, n + 1)
    assert SelfCertainty(p=p).merge(made, LETTERS).value == heaviest(answers, (n - rank + 1) ** p)


@given(voters(), st.sampled_from([1e-10, 0.05]))
def test_inverse_entropy(made: list[Branch], floor: float) -> None:
    answers, columns = arrays(made)
    bits = columns["entropy"] / np.log(2)
    expected = heaviest(answers, 1 / np.maximum(bits, floor))
    assert InverseEntropy(floor=floor, cap=None).merge(made, LETTERS).value == expected


@given(voters())
def test_shortest_majority(made: list[Branch]) -> None:
    answers, columns = arrays(made)
    scores = {
        a: (answers == a).sum() / np.log(max(columns["tokens"][answers == a].mean(), np.e)) for a in np.unique(answers)
    }
    ordered = sorted(scores.values())
    assume(len(ordered) < 2 or ordered[-1] - ordered[-2] > 1e-9)
    assert ShortestMajority().merge(made, LETTERS).value == max(scores, key=lambda a: scores[a])


@given(voters(), st.sampled_from(["logprob", "mean", "tail", "bottom", "lowest", "entropy", "certainty"]))
def test_best_scored(made: list[Branch], by: str) -> None:
    answers, columns = arrays(made)
    scores = columns["confidence" if by == "mean" else by] * (-1 if by == "entropy" else 1)
    assert BestScored.model_validate({"criterion": by}).merge(made, LETTERS).value == answers[np.argmax(scores)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 100))
def test_percentile_is_numpys(figures: list[float], percent: float) -> None:
    assert percentile(figures, percent) == pytest.approx(np.percentile(figures, percent), rel=1e-9, abs=1e-6)


# --- what the peers get wrong -----------------------------------------------------------------------------------------

WEIGHING: list[Merge] = [
    *(Weighted.model_validate({"criterion": by}) for by in ("mean", "tail", "bottom", "lowest")),
    InverseEntropy(),
    SelfCertainty(),
    ShortestMajority(),
    Majority(),
]


@pytest.mark.parametrize("merge", WEIGHING, ids=lambda merge: f"{type(merge).__name__}-{getattr(merge, 'by', '')}")
@pytest.mark.parametrize("usual", [0.5, 8.0])
def test_one_outlier_does_not_beat_fifteen_votes(merge: Merge, usual: float) -> None:
    many = [voter(f"b{i}", "A", signals=confident(usual, certainty=usual, entropy=2.0)) for i in range(15)]
    outlier = voter("b15", "B", tokens=2, signals=confident(1e6, certainty=1e6, entropy=0.0))
    assert merge.merge([outlier, *many], LETTERS).value == "A"


def test_without_the_cap_it_does_as_the_papers_rules_say() -> None:
    many = [voter(f"b{i}", "A", signals=confident(8.0)) for i in range(15)]
    outlier = voter("b15", "B", signals=confident(1e6, entropy=0.0))
    assert Weighted(cap=None).merge([*many, outlier], LETTERS).value == "B"
    assert InverseEntropy(floor=1e-10, cap=None).merge([*many, outlier], LETTERS).value == "B"


def test_the_majority_does_not_overwrite_the_weighted_vote() -> None:
    made = [voter("b0", "A", signals=confident(2.0)), voter("b1", "A", signals=confident(2.0))]
    made.append(voter("b2", "B", signals=confident(7.0)))
    verdict = Weighted(cap=None).merge(made, LETTERS)
    assert (verdict.value, verdict.winner) == ("B", "b2")
    assert verdict.why == "tail confidence 7 of 11, margin 3; 1 of 3 votes in 2 answers, against the majority of 2"


# --- who votes --------------------------------------------------------------------------------------------------------


def test_who_is_left_out_is_said() -> None:
    made = [
        voter("b0", "A", signals=confident(9.0)),
        voter("b1", "B", signals=confident(1.0)),
        voter("b2", "A"),
        voter("b3", "?"),
        ended("b4", State.CANCELLED),
        voter("b5", "B", signals=confident(8.0)),
    ]
    verdict = Weighted(eta=60).merge(made, LETTERS)
    assert verdict.value == "A"
    assert verdict.why == (
        "tail confidence 9 of 17, margin 1; 1 of 2 votes in 2 answers; no confidence in b2; below 6.6: b1; "
        "no answer in b3; not counted: b4 cancelled"
    )


@pytest.mark.parametrize("merge", [Weighted(), InverseEntropy(), SelfCertainty()])
def test_without_signals_the_remedy_is_said(merge: Merge) -> None:
    with pytest.raises(PluginError, match="logprobs="):
        merge.merge(branches("A", "B"), LETTERS)
    assert merge.merge(branches("?", "?"), LETTERS).value is None


@pytest.mark.parametrize("merge", [*WEIGHING, BestScored(criterion="mean")], ids=lambda merge: type(merge).__name__)
def test_nobody_votes(merge: Merge) -> None:
    verdict = merge.merge([voter("b0", "?"), ended("b1", State.FAILED)], LETTERS)
    assert verdict.value is None and verdict.winner is None
    assert verdict.why == "no votes in 2 branches; no answer in b0; not counted: b1 failed"


def test_ties_go_to_more_votes_then_to_the_earliest() -> None:
    made = [voter("b0", "B", signals=confident(4.0)), voter("b1", "A", signals=confident(2.0))]
    made.append(voter("b2", "A", signals=confident(2.0)))
    verdict = Weighted().merge(made, LETTERS)
    assert verdict.value == "A" and "a tie of 2 settled by votes" in verdict.why
    verdict = Weighted().merge(made[:1] + [voter("b1", "A", signals=confident(4.0))], LETTERS)
    assert verdict.value == "B" and "a tie of 2 settled by order" in verdict.why


def test_what_was_cut_off_has_no_length() -> None:
    made = [voter("b0", "A", tokens=3, finish="length"), voter("b1", "B", tokens=50), voter("b2", "C", tokens=40)]
    verdict = ShortestMajority().merge(made, LETTERS)
    assert verdict.value == "C" and "cut off: b0" in verdict.why


def test_length_is_mainly_a_tie_breaker() -> None:
    long = [voter(f"b{i}", "A", tokens=16_000) for i in range(4)]
    short = [voter(f"c{i}", "B", tokens=2_000) for i in range(3)]
    verdict = ShortestMajority().merge([*long, *short], LETTERS)
    assert verdict.value == "A" and "score 0.4132, margin 0.01852" in verdict.why


def test_a_warm_up_that_fails_the_filter_leaves_no_empty_vote() -> None:
    made = [voter("b0", "?", signals=confident(9.0)), voter("b1", "A", signals=confident(1.0))]
    verdict = Weighted(eta=10, warmup=1, criterion="lowest").merge(made, LETTERS)
    assert verdict.value == "A" and "is ignored" in verdict.why


# --- branches that were given up in favour of others ------------------------------------------------------------------


def given_up(name: str, into: str) -> Branch:
    return Branch(name, f"r:{name}", State.CANCELLED, None, None, 5, (), f"r:{into}")


def test_a_redundant_branch_votes_with_the_one_it_was_like() -> None:
    made = [branch("b0", "A"), branch("b1", "A"), branch("b2", "B"), given_up("b3", "b2"), given_up("b4", "b3")]
    verdict = Majority().merge(made, LETTERS)
    assert verdict.value == "B"
    assert verdict.why == "3 of 5 votes, margin 1; 2 given up as redundant, counted with those like them"
    weighing = [
        voter("b0", "A", signals=confident(3.0)),
        voter("b1", "B", signals=confident(2.0)),
        given_up("b2", "b1"),
    ]
    assert Weighted().merge(weighing, LETTERS).value == "B"


def test_votes_that_go_with_a_running_branch_are_outstanding() -> None:
    made = [*(branch(f"b{i}", "A") for i in range(3)), ended("b3", State.RUNNING)]
    assert Majority().decided(made, 1, LETTERS)
    assert not Majority().decided([*made, given_up("b4", "b3"), given_up("b5", "b3")], 1, LETTERS)


def test_votes_that_go_with_a_failed_branch_are_missed() -> None:
    verdict = Majority().merge([branch("b0", "A"), ended("b1", State.FAILED), given_up("b2", "b1")], LETTERS)
    assert verdict.value == "A" and verdict.why.endswith("not counted: b1 failed with 1 like it")


# --- scorers ----------------------------------------------------------------------------------------------------------


def length(question: str, text: str) -> float:
    return math.nan if text == "never" else float(len(question) + len(text))


allow(f"{__name__}:length", f"{__name__}:no", "no.such:fn")


def test_a_scorer_of_the_users() -> None:
    scorer = BestScored(function=f"{__name__}:length")
    verdict = scorer.merge(branches("a", "is long", "never"), LETTERS)
    assert verdict.value == "long" and verdict.why.endswith("best of 2, margin 6; no score for b3")


@pytest.mark.parametrize(("path", "said"), [("no.such:fn", "cannot be imported"), (f"{__name__}:no", "no function")])
def test_a_scorer_that_is_not_there(path: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        BestScored(function=path).merge(branches("a"), LETTERS)
