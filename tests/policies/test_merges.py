"""The merges `collect`, `majority` and `best-of`: verdicts, reasons, and when a verdict is certain."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, strategies as st

from plait.core.states import State
from plait.core.view import Branch
from plait.policies.merge.best import BestOf
from plait.policies.merge.values import Collect
from plait.policies.merge.votes import Majority
from tests.policies.branches import LETTERS, branch, branches, ended

MAJORITY, BEST = Majority(), BestOf()


# --- collect ---------------------------------------------------------------------------------------------------------


def test_collect_keeps_order_and_says_who_is_missing() -> None:
    some = [branch("a", {"x": 1}), ended("b", State.FAILED), branch("c", None), ended("d", State.CANCELLED)]
    verdict = Collect().merge(some, LETTERS)
    assert verdict.value == [{"x": 1}, None, None, None]
    assert verdict.why == "2 of 4 branches; missing: b failed, d cancelled"
    assert not Collect().decided(some, 1, LETTERS)


# --- majority --------------------------------------------------------------------------------------------------------


def test_majority_counts() -> None:
    verdict = MAJORITY.merge([*branches("is A", "is B", "is A", "is ?"), ended("b5", State.FAILED)], LETTERS)
    assert (verdict.value, verdict.winner) == ("A", "b1")
    assert verdict.why == "2 of 3 votes, margin 1; no answer in b4; not counted: b5 failed"


def test_equal_answers_by_key_vote_together() -> None:
    assert MAJORITY.merge(branches("B", "A!", "A"), LETTERS).value == "A!"


def test_no_votes() -> None:
    verdict = MAJORITY.merge(branches("?", None), LETTERS)
    assert verdict.value is None and verdict.winner is None and verdict.why.startswith("no votes in 2 branches")


def test_values_that_are_not_text_are_read_as_json() -> None:
    assert MAJORITY.merge(branches(7, 8, 8), LETTERS).value == "8"


def test_ties_go_to_the_earliest() -> None:
    verdict = MAJORITY.merge(branches("C", "B", "A", "A", "B"), LETTERS)
    assert verdict.value == "B" and "a tie of 2 settled by order" in verdict.why


def test_ties_go_to_the_likelier_if_all_say_how_likely() -> None:
    known = [branch("b1", "B", -2.0), branch("b2", "A", -0.5), branch("b3", "B", -0.1), branch("b4", "A", -1.0)]
    verdict = MAJORITY.merge(known, LETTERS)
    assert verdict.value == "A" and "settled by log-probability" in verdict.why
    unknown = [*known[:3], branch("b4", "A")]
    assert MAJORITY.merge(unknown, LETTERS).value == "B"
    others = [*known, branch("b5", "C")]  # not tied, so its silence does not matter
    assert MAJORITY.merge(others, LETTERS).value == "A"


def test_decided_is_a_lead_over_all_that_is_out() -> None:
    assert not MAJORITY.decided(branches("A", "A"), 2, LETTERS)
    assert MAJORITY.decided(branches("A", "A", "A"), 2, LETTERS)
    assert not MAJORITY.decided(branches("A", "A", "A", "B"), 2, LETTERS)
    assert not MAJORITY.decided(branches("?", "?", "?"), 2, LETTERS)
    assert not MAJORITY.decided([], 1, LETTERS)
    assert MAJORITY.decided(branches("A", "B"), 0, LETTERS)


ANSWERS = st.lists(st.sampled_from(["A", "B", "C", "?", "fail"]), min_size=1, max_size=7)


@given(ANSWERS, st.lists(st.booleans(), min_size=7, max_size=7), st.sampled_from([None, -1.0]))
def test_decided_is_lossless(answers: list[str], out: list[bool], logprob: float | None) -> None:
    """Whenever it says so, all outcomes of the branches that are out have the same winner."""

    def made(i: int, answer: str) -> Branch:
        return ended(f"b{i}", State.FAILED) if answer == "fail" else branch(f"b{i}", answer, logprob)

    places = [i for i in range(len(answers)) if out[i]][:3]
    now = [ended(f"b{i}", State.RUNNING) if i in places else made(i, answer) for i, answer in enumerate(answers)]
    if not MAJORITY.decided(now, len(places), LETTERS):
        return
    winners = set()
    for outcome in product(["A", "B", "C", "new", "?", "fail"], [None, -0.1, -9.0], repeat=len(places)):
        then = list(now)
        for n, place in enumerate(places):
            answer, how_likely = outcome[2 * n], outcome[2 * n + 1]
            then[place] = (
                ended(f"b{place}", State.CANCELLED) if answer == "fail" else branch(f"b{place}", answer, how_likely)
            )
        winners.add(MAJORITY.merge(then, LETTERS).value)
    assert len(winners) == 1


@given(ANSWERS)
def test_a_lead_that_is_not_enough_can_be_lost(answers: list[str]) -> None:
    """And it is no more careful than needed: undecided, all the rest for a rival do at least tie."""
    now = branches(*[a for a in answers if a != "fail"])
    for outstanding in (1, 2, 3):
        if MAJORITY.decided(now, outstanding, LETTERS):
            continue
        counts = sorted((answers.count(letter) for letter in "ABC"), reverse=True)
        assert counts[0] <= counts[1] + outstanding


# --- best of ---------------------------------------------------------------------------------------------------------


def test_the_first_right_answer() -> None:
    verdict = BEST.merge([*branches("a", "?", "7", "A", "B"), ended("b6", State.CANCELLED)], LETTERS)
    assert (verdict.value, verdict.winner) == ("A", "b4")
    assert verdict.why == (
        "verified; of 5 done, 2 right, 1 wrong, 1 not judged, 1 without an answer; "
        "no answer in b2; not counted: b6 cancelled"
    )


def test_without_one_the_most_frequent_that_could_be_right() -> None:
    verdict = BEST.merge(branches("a", "a", "a", "7", "8", "8", "7"), LETTERS)
    assert (verdict.value, verdict.winner) == ("7", "b4")
    assert verdict.why.startswith("not verified, 2 of 4 votes")


def test_answers_that_are_wrong_are_never_returned() -> None:
    verdict = BEST.merge(branches("a", "?"), LETTERS)
    assert verdict.value is None and verdict.why.startswith("no answer that could be right")


@pytest.mark.parametrize(("values", "certain"), [(["a", "7"], False), (["a", "A"], True), ([], False)])
def test_decided_when_one_is_right(values: list[str], certain: bool) -> None:
    assert BEST.decided(branches(*values), 3, LETTERS) is certain
    assert BEST.decided(branches(*values), 0, LETTERS)
