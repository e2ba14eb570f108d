"""Which of several planners a request is worth: what each would achieve by the request's features, and in which order
to try them. Pure arithmetic; `plait learn route` finds the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, NamedTuple, cast

from pydantic import Field, PrivateAttr, model_validator

from plait.core.declarations import Access, Free
from plait.core.values import Frozen
from plait.core.vocabulary import OnePlugin

MOST_TIERS = 10
"""Of a route: all orders of them are weighed."""


class Odds(Frozen):
    """A chance, by logistic regression on standardised features."""

    bias: float = Field(default=0.0, allow_inf_nan=False)
    """Log-odds where all features are in the middle."""
    weights: Annotated[dict[str, float], Free()] = {}
    """What each feature adds to them, for a standard deviation above the middle."""

    def chance(self, standard: Mapping[str, float]) -> float:
        """Return the probability for standardised features."""
        odds = self.bias + sum(weight * standard.get(name, 0.0) for name, weight in self.weights.items())
        return 1.0 / (1.0 + math.exp(-max(-40.0, min(40.0, odds))))


class Tier(Odds):
    """A planner that a request may be given to, and what is known of it. A planner alone, `sample:n=8`, is a tier of
    which nothing is known."""

    planner: Annotated[OnePlugin, Access("planner")]
    cost: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Tokens of a run, in the mean."""
    after: Odds | None = None
    """Its chance once the answer of the tier `TierFit.first` was read; `bias` and `weights` are from the request
    alone."""
    runs: Annotated[int, Free()] = Field(default=0, ge=0)
    """How many runs the numbers are of."""
    wins: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Sum of its utilities so far; a right answer that cost nothing counts 1."""
    losses: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Runs so far, less `wins`."""

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: object) -> object:
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            fields = cast("Mapping[str, object]", value)
            return fields if "planner" in fields else {"planner": fields}
        return {"planner": value}


class Pattern(Frozen):
    """Requests on which the same tiers were right."""

    right: tuple[int, ...]
    """Places of these tiers."""
    count: float = Field(gt=0.0, allow_inf_nan=False)
    """How many requests."""
    costs: tuple[float, ...]
    """Tokens of each tier on them, in the mean."""


class TierFit(Frozen):
    """Joint success of the tiers, and the cost of a token."""

    scale: dict[str, tuple[float, float]] = {}
    """Mean and standard deviation of each feature, over the requests that the numbers are of."""
    together: tuple[Pattern, ...] = ()
    """Which tiers were right together. Tiers fail on the same requests, and work longer on them: what one line of 128
    tokens did not solve, one of 256 solves less often than others. Without it they are taken to be independent."""
    price: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Cost of a token, in right answers."""
    first: int | None = Field(default=None, ge=0)
    """Place of the tier that answers each request first, where no wrong answer is noticed. Its answer is read, and
    stays or is replaced by that of another tier (as FrugalGPT has it, arXiv 2305.05176)."""


class TierOrder(NamedTuple):
    """An order of tiers with its expected result."""

    places: tuple[int, ...]
    right: float
    """Chance of a right answer."""
    tokens: float
    """Of those that are asked."""
    cost: float
    """Tokens if all are asked."""


class Ranking(TierFit):
    """Tiers with what is known of them: in which order to try them."""

    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=MOST_TIERS)

    _lifts: dict[tuple[int, int], tuple[float, float]] = PrivateAttr(
        default_factory=dict[tuple[int, int], tuple[float, float]]
    )

    @model_validator(mode="after")
    def _costs_of_all(self) -> Ranking:
        if any(len(pattern.costs) != len(self.tiers) for pattern in self.together):
            raise ValueError(f"there are {len(self.tiers)} tiers: each pattern of `together` needs as many costs")
        return self

    @model_validator(mode="after")
    def _reads_all(self) -> Ranking:
        if self.first is not None and (self.first >= len(self.tiers) or any(tier.after is None for tier in self.tiers)):
            raise ValueError("`first` is the place of a tier, and then each tier needs `after`")
        return self

    def standard(self, features: Mapping[str, float]) -> dict[str, float]:
        """Return features less their means, in standard deviations. One that a request lacks is in the middle; a word
        that it lacks was met no times."""
        return {
            name: (features.get(name, 0.0 if name.startswith("word.") else mean) - mean) / deviation
            for name, (mean, deviation) in self.scale.items()
            if deviation
        }

    def chances(self, features: Mapping[str, float]) -> list[float]:
        """Return each tier's probability of a right answer for a request with these features."""
        standard = self.standard(features)
        return [tier.chance(standard) for tier in self.tiers]

    def chances_after(self, features: Mapping[str, float]) -> list[float]:
        """Return the same once the answer of the tier `first` was read; its features are among these."""
        standard = self.standard(features)
        return [tier.after.chance(standard) for tier in self.tiers if tier.after is not None]

    def stays(self, chances: Sequence[float]) -> int:
        """Return the place of the tier whose answer is worth most once the first was read (`chances_after`): the first
        costs nothing more."""
        worth = [
            chance - (0.0 if place == self.first else self.price * self.tiers[place].cost)
            for place, chance in enumerate(chances)
        ]
        return max(range(len(worth)), key=lambda place: (worth[place], place == self.first))

    def order(self, features: Mapping[str, float], checked: bool) -> list[int]:
        """Return the places of the tiers to try, in this order.

        Args:
            features: of the request.
            checked: a wrong answer is noticed, and the next tier tried. Then it is the order whose chance of a right
                answer less the price of the tokens that it takes is largest. Else it is one tier: that with the largest
                chance less its price.

        Of equals the cheapest is taken, so that nothing is spent on a request that no tier solves.
        """
        return self.cheapest(self.orders(self.chances(features), checked), self.price)

    def orders(self, chances: Sequence[float], checked: bool) -> list[TierOrder]:
        """Return the orders that may be tried, each with its expected result."""
        by_cost = sorted(range(len(self.tiers)), key=lambda place: (self.tiers[place].cost, -chances[place], place))
        most = len(by_cost) if checked else 1
        return [self._come_to(places, chances) for size in range(1, most + 1) for places in combinations(by_cost, size)]

    @staticmethod
    def cheapest(orders: Sequence[TierOrder], price: float) -> list[int]:
        """Return the places of the order that is worth most at a price of a token, the cheapest of equals."""
        return list(max(orders, key=lambda order: (round(order.right - price * order.tokens, 12), -order.cost)).places)

    def _come_to(self, places: tuple[int, ...], chances: Sequence[float]) -> TierOrder:
        left, right, tokens, failed = 1.0, 0.0, 0.0, 0
        for place in places:
            likelier, dearer = self._lift(place, failed)
            chance = min(1.0, chances[place] * likelier)
            right += left * chance
            tokens += left * self.tiers[place].cost * dearer
            left *= 1.0 - chance
            failed |= 1 << place
        return TierOrder(places, right, tokens, sum(self.tiers[place].cost for place in places))

    def _lift(self, place: int, failed: int) -> tuple[float, float]:
        """Return the factors by which a tier is more likely to be right, and dearer, where others (bits of
        `failed`) were wrong. Two requests of the usual kind are added, so that rare cases do not count much."""
        if not failed or not self.together:
            return 1.0, 1.0
        if (known := self._lifts.get((place, failed))) is None:
            whole = _means(self.together, place)
            left = [pattern for pattern in self.together if not any(failed >> other & 1 for other in pattern.right)]
            mine, count = _means(left, place), sum(pattern.count for pattern in left)
            ratios = [(a * count + 2 * b) / (count + 2) / b if b else 1.0 for a, b in zip(mine, whole, strict=True)]
            known = self._lifts[place, failed] = (ratios[0], ratios[1])
        return known


def _means(patterns: Sequence[Pattern], place: int) -> tuple[float, float]:
    """Return the share of right answers of a tier, and its tokens in the mean."""
    count = sum(pattern.count for pattern in patterns)
    if not count:
        return 0.0, 0.0
    right = sum(pattern.count for pattern in patterns if place in pattern.right)
    return right / count, sum(pattern.count * pattern.costs[place] for pattern in patterns) / count
