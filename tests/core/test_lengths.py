"""The estimate of how long an answer will be: what counts, for how much, and what always holds of it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from plait.core.lengths import ENOUGH, QUANTILE, SHARE, expected_tokens, quantile
from plait.core.plan import template

LIMIT = 1000
lengths = st.lists(st.integers(0, LIMIT), max_size=20)
samples = st.lists(lengths, max_size=3)
shares = st.floats(0.01, 0.99)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("run:sample-3", "sample-"),
        ("run:sample-17", "sample-"),
        ("run:fork/p12-3", "p-"),
        ("run:root/2/p1-44", "p-"),
        ("answer", "answer"),
        ("7", ""),
        ("", ""),
    ],
)
def test_a_template_is_the_name_without_run_scope_and_numbers(step: str, name: str) -> None:
    assert template(step) == name


def test_the_nearest_rank_is_a_value_that_is_there() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0.0, 0.25, 0.26, 0.5, 0.75, 1.0)] == [1, 1, 2, 2, 3, 4]
    with pytest.raises(ValueError, match="no value"):
        quantile([], 0.5)


def test_without_any_length_the_limit_says_it() -> None:
    assert expected_tokens(LIMIT) == pytest.approx(-SHARE * LIMIT * math.log(1 - QUANTILE), rel=0.2)
    assert 0.15 * LIMIT < expected_tokens(LIMIT, share=0.5) < 0.25 * LIMIT


def test_siblings_count_first_then_the_template_then_what_is_like_it_only_in_the_limit() -> None:
    siblings, earlier, wide = [100] * ENOUGH, [300] * ENOUGH, [700] * 50
    assert expected_tokens(LIMIT, [siblings, earlier, wide]) == 100
    assert expected_tokens(LIMIT, [[], earlier, wide]) == 300
    assert expected_tokens(LIMIT, [[], [], wide]) == 700


def test_a_few_siblings_count_an_eighth_each_and_the_rest_is_the_templates() -> None:
    earlier = [300] * 20
    for few in range(ENOUGH):
        found = expected_tokens(LIMIT, [[100] * few, earlier], share=0.5)
        assert found == (100 if few / ENOUGH >= 0.5 else 300)


def test_only_longer_ones_count_for_a_step_that_is_under_way() -> None:
    ended = [[10] * 10 + [100] * 4 + [500] * 2]
    assert expected_tokens(LIMIT, ended, share=0.5) == 10
    assert expected_tokens(LIMIT, ended, known=10, share=0.5) == 90
    assert expected_tokens(LIMIT, ended, known=100, share=0.5) == 400
    assert expected_tokens(LIMIT, ended, known=600) == SHARE * 400


def test_the_newest_lengths_count() -> None:
    assert expected_tokens(LIMIT, [[900] * 500 + [50] * 64]) == 50


@given(samples, st.integers(0, LIMIT), shares)
def test_it_lies_between_one_and_what_the_limit_leaves(found: list[list[int]], known: int, share: float) -> None:
    assert 1 <= expected_tokens(LIMIT, found, known=known, share=share) <= max(1, LIMIT - known)


@given(samples, st.integers(0, LIMIT), shares, shares)
def test_a_higher_quantile_is_no_shorter(found: list[list[int]], known: int, one: float, two: float) -> None:
    low, high = (expected_tokens(LIMIT, found, known=known, share=each) for each in sorted((one, two)))
    assert low <= high


@given(samples, st.integers(0, LIMIT), st.integers(0, LIMIT), shares)
def test_a_step_that_has_more_is_not_expected_to_end_earlier(
    found: list[list[int]], one: int, two: int, share: float
) -> None:
    low, high = sorted((one, two))
    assert low + expected_tokens(LIMIT, found, known=low, share=share) <= high + expected_tokens(
        LIMIT, found, known=high, share=share
    )


@given(samples, st.integers(0, LIMIT), shares, st.randoms(use_true_random=False))
def test_their_order_makes_no_difference(found: list[list[int]], known: int, share: float, rng: random.Random) -> None:
    again = [rng.sample(each, len(each)) for each in found]
    assert expected_tokens(LIMIT, found, known=known, share=share) == expected_tokens(
        LIMIT, again, known=known, share=share
    )


@given(st.lists(st.integers(1, LIMIT), min_size=ENOUGH, max_size=60), shares)
def test_of_enough_siblings_it_is_their_quantile_whatever_the_others_are(ended: list[int], share: float) -> None:
    assert expected_tokens(LIMIT, [ended, [999] * 99], share=share) == quantile(ended, share)


@given(samples, st.integers(2, 50), shares)
def test_it_grows_with_the_unit(found: list[list[int]], by: int, share: float) -> None:
    larger = [[by * each for each in sample] for sample in found]
    ours, theirs = expected_tokens(LIMIT, found, share=share), expected_tokens(by * LIMIT, larger, share=share)
    assert theirs == pytest.approx(by * ours)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
def test_over_many_draws_so_many_are_not_longer(share: float) -> None:
    """Lengths of templates with means of their own; the estimate is made from the siblings that ended before."""
    rng = random.Random(5)
    held: list[bool] = []
    for _ in range(400):
        mean = rng.lognormvariate(4.5, 0.7)
        drawn = [min(LIMIT, 1 + int(rng.expovariate(1 / mean))) for _ in range(33)]
        held.append(drawn[-1] <= expected_tokens(LIMIT, [drawn[:-1]], share=share))
    assert sum(held) / len(held) == pytest.approx(share, abs=0.06)
