"""What is told of requests and answers without a model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from plait_research.route.features import answer_features, features, vote_share, word_features

ASKED = "Ann has 12 eggs, eats 3, and sells 1,200 of them at $2. What is it in dollars?"


def test_sums_are_checked_with_dollars_crosses_and_thousands() -> None:
    right = answer_features(ASKED, "12 - 3 = 9. $600 x 2 = $1,200. 10 / 4 = 2.5 <<10/4=9>>")
    assert right["answer.right-sums"] == math.log1p(3) and right["answer.any-wrong-sum"] == 0.0
    wrong = answer_features(ASKED, "12 - 3 = 8")
    assert wrong["answer.wrong-sums"] == math.log1p(1) and wrong["answer.any-wrong-sum"] == 1.0


@pytest.mark.parametrize("text", ["1 + 2 + 3 = 7", "x = 7", "5 / 0 = 1", "12 = 12", "(1 + 2) * 3 = 8"])
def test_what_is_no_sum_of_two_numbers_is_left_alone(text: str) -> None:
    told = answer_features("?", text)
    assert told["answer.right-sums"] == told["answer.wrong-sums"] == 0.0


def test_numbers_of_the_question_that_the_answer_leaves_out_are_counted() -> None:
    told = answer_features(ASKED, "12 and 3 come to 1200")
    assert told["answer.left-out"] == math.log1p(1) and told["answer.share-left-out"] == 0.25
    assert told["answer.repeats"] == 1.0


def test_words_are_the_same_whatever_the_numbers_and_their_squares_add_up_to_one() -> None:
    assert word_features("Sell 12 eggs") == word_features("sell 7 eggs") != word_features("sell 7 hens")
    assert sum(value**2 for value in word_features(ASKED).values()) == pytest.approx(1.0)
    assert word_features("") == {}


SHARES = [("2 of 3 votes, margin 1", 2 / 3), ("single answers", None), ("0 of 0 votes", None)]


@pytest.mark.parametrize(("why", "share"), SHARES)
def test_the_share_of_the_votes_stands_in_the_reason(why: str, share: float | None) -> None:
    assert vote_share(why) == share


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_has_the_same_finite_features(question: str, answer: str) -> None:
    told = {**features(question), **word_features(question), **answer_features(question, answer)}
    assert all(math.isfinite(value) for value in told.values())
    assert answer_features(question, answer).keys() == answer_features("", "").keys()
