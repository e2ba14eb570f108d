"""Features of requests, chances of tiers, and the order in which they are tried."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import FieldError
from plait.core.ops import Plugin
from plait_research.route.features import features
from plait_research.route.ranking import Pattern, Ranking, Tier


def tier(name: str, cost: float, chance: float = 0.5, **weights: float) -> Tier:
    return Tier(planner=Plugin(name=name), cost=cost, bias=math.log(chance / (1 - chance)), weights=weights)


def test_features_tell_requests_apart() -> None:
    found = features("Is 12 more than Anna's 7?\nAnd 3?", ["get_weather", "more_than"])
    assert found["last"] == math.log1p(3) and found["largest"] == math.log1p(12)
    assert found["questions"] == math.log1p(2) and found["names"] == math.log1p(1)
    assert found["tools"] == math.log1p(1) and found["even"] == pytest.approx(1 / 3)
    assert set(features("")) == set(found)


@given(st.text(max_size=500))
def test_features_of_any_text_are_small_numbers(text: str) -> None:
    assert all(math.isfinite(value) and 0 <= value < 100 for value in features(text).values())


def test_of_a_planner_alone_nothing_is_known() -> None:
    alone = Tier.model_validate("sample:n=8")
    assert (alone.planner.name, alone.runs, alone.wins, alone.losses) == ("sample", 0, 0.0, 0.0)


def test_without_a_check_it_is_the_tier_of_most_worth() -> None:
    tiers = (tier("cheap", 100, 0.5), tier("dear", 1000, 0.9))
    assert Ranking(tiers=tiers, price=0.0).order({}, checked=False) == [1]
    assert Ranking(tiers=tiers, price=0.001).order({}, checked=False) == [0]


def test_a_hopeless_request_goes_to_the_cheapest() -> None:
    tiers = (tier("dear", 1000, 1e-9), tier("cheap", 100, 1e-9))
    assert Ranking(tiers=tiers, price=0.001).order({}, checked=False) == [1]
    assert Ranking(tiers=tiers, price=0.001).order({}, checked=True) == [1]


def test_with_a_check_a_cheap_try_that_seldom_helps_is_left_out() -> None:
    tiers = (tier("direct", 300, 0.05), tier("serial", 300, 0.6), tier("threads", 1000, 0.99))
    assert Ranking(tiers=tiers, price=1e-5).order({}, checked=True) == [1, 2]
    assert Ranking(tiers=tiers, price=0.0).order({}, checked=True) == [1, 0, 2]
    assert Ranking(tiers=tiers, price=0.01).order({}, checked=True) == [1], "at such a price one try is enough"


def test_tiers_that_fail_together_are_not_tried_one_after_the_other() -> None:
    """The middle tier solves what the cheap one solves and nothing else."""
    tiers = (tier("cheap", 100, 0.5), tier("middle", 200, 0.5), tier("dear", 1000, 0.99))
    assert Ranking(tiers=tiers, price=1e-4).order({}, checked=True) == [0, 1, 2]
    costs = (100.0, 200.0, 1000.0)
    together = (Pattern(right=(0, 1, 2), count=50, costs=costs), Pattern(right=(2,), count=50, costs=costs))
    assert Ranking(tiers=tiers, together=together, price=1e-4).order({}, checked=True) == [0, 2]
    assert Ranking(tiers=tiers, together=together, price=1e-4).order({}, checked=False) == [2]
    hard = (together[0], together[1].model_copy(update={"costs": (100.0, 200.0, 20_000.0)}))
    assert Ranking(tiers=tiers, together=together, price=6e-4).order({}, checked=True) == [0, 2]
    assert Ranking(tiers=tiers, together=hard, price=6e-4).order({}, checked=True) == [0], "dear where the first fails"
    with pytest.raises(FieldError, match="as many costs"):
        Ranking(tiers=tiers, together=(Pattern(right=(), count=1, costs=(1.0,)),))


def test_features_decide() -> None:
    tiers = (tier("short", 100, 0.5, characters=-3.0), tier("long", 500, 0.9))
    route = Ranking(tiers=tiers, scale={"characters": (4.0, 1.0)}, price=5e-4)
    assert route.order({"characters": 3.0}, checked=False) == [0]
    assert route.order({"characters": 5.0}, checked=False) == [1]
    assert route.chances({"characters": 3.0})[0] == pytest.approx(1 / (1 + math.exp(-3)))


@given(
    st.lists(st.tuples(st.floats(1, 2000), st.floats(0.01, 0.99)), min_size=1, max_size=4),
    st.floats(0, 0.01),
)
def test_the_order_is_the_best_of_all_that_begin_cheap(pairs: list[tuple[float, float]], price: float) -> None:
    route = Ranking(tiers=tuple(tier("x", *pair) for pair in pairs), price=price)

    def worth(places: tuple[int, ...]) -> float:
        left, total = 1.0, 0.0
        for place in places:
            cost, chance = pairs[place]
            total, left = total + left * (chance - price * cost), left * (1 - chance)
        return total

    cheap_first = [
        places
        for size in range(1, len(pairs) + 1)
        for places in permutations(range(len(pairs)), size)
        if all(pairs[a][0] <= pairs[b][0] for a, b in zip(places, places[1:], strict=False))
    ]
    assert worth(tuple(route.order({}, checked=True))) == pytest.approx(max(map(worth, cheap_first)), abs=1e-9)


def test_a_route_needs_a_tier() -> None:
    with pytest.raises(FieldError):
        Ranking(tiers=())


def test_mean_and_spread_are_of_the_logarithms_of_the_numbers() -> None:
    one, two, three = (math.log1p(number) for number in (1, 2, 3))
    mean = (one + two + three) / 3
    known = features("1 2 3")
    assert known["mean"] == pytest.approx(mean)
    assert known["spread"] == pytest.approx(
        math.sqrt(((one - mean) ** 2 + (two - mean) ** 2 + (three - mean) ** 2) / 3)
    )
