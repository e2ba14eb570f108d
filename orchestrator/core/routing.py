"""Which of several planners a request is worth: features of its text, what each planner would achieve, and in which
order to try them. Pure arithmetic; `plait learn route` finds the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import cast

from pydantic import Field, PrivateAttr, model_validator

from .values import Frozen
from .vocabulary import OnePlugin

__all__ = ["MOST_TIERS", "Pattern", "Ranking", "Tier", "TierFit", "features"]

MOST_TIERS = 10
"""Of a route: all orders of them are weighed."""
_READ = 40_000
"""Characters of a text that are looked at."""
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,6})?")
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+")
_WORD = re.compile(r"\w+")


def features(text: str, tools: Iterable[str] = ()) -> dict[str, float]:
    """Return what can be told of a request without a model: how long it is, its numbers, names and questions, and how
    many of the tools it mentions. All are small: lengths and numbers are logarithms.

    >>> features("3 5 -> 24")["last"] == math.log1p(24)
    True
    """
    text = text[:_READ]
    words = {word.casefold() for word in _WORD.findall(text)}
    numbers = [float(digits) for digits in _NUMBER.findall(text)]
    # A question with a million in it is not a hundred thousand times as far off as one with a ten.
    logs = [math.log1p(number) for number in numbers] or [0.0]
    mean = sum(logs) / len(logs)
    mentioned = (words & {word.casefold() for word in _WORD.findall(name.replace("_", " "))} for name in tools)
    return {
        "characters": math.log1p(len(text)),
        "numbers": math.log1p(len(numbers)),
        "largest": max(logs),
        "smallest": min(logs),
        "mean": mean,
        "spread": math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)),
        "last": logs[-1],
        "even": sum(number % 2 == 0 for number in numbers) / len(numbers) if numbers else 0.0,
        "names": math.log1p(len(_NAME.findall(text))),
        "questions": math.log1p(text.count("?")),
        "lines": math.log1p(text.count("\n")),
        "operators": math.log1p(sum(map(text.count, ("+", "-", "*", "/", "=")))),
        "tools": math.log1p(sum(map(bool, mentioned))),
    }


class Tier(Frozen):
    """A planner that a request may be given to, and what is known of it. A planner alone, `sample:n=8`, is a tier of
    which nothing is known."""

    planner: OnePlugin
    cost: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Tokens of a run, in the mean."""
    bias: float = Field(default=0.0, allow_inf_nan=False)
    """Log-odds of a right answer for a request whose features are all in the middle."""
    weights: dict[str, float] = {}
    """What each feature adds to them, for a standard deviation above the middle."""
    runs: int = Field(default=0, ge=0)
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

    def chance(self, standard: Mapping[str, float]) -> float:
        """Return the probability of a right answer, by logistic regression on standardised features."""
        odds = self.bias + sum(weight * standard.get(name, 0.0) for name, weight in self.weights.items())
        return 1.0 / (1.0 + math.exp(-max(-40.0, min(40.0, odds))))


class Pattern(Frozen):
    """Requests on which the same tiers were right."""

    right: tuple[int, ...]
    """Places of these tiers."""
    count: float = Field(gt=0.0, allow_inf_nan=False)
    """How many requests."""
    costs: tuple[float, ...]
    """Tokens of each tier on them, in the mean."""


class TierFit(Frozen):
    """What is known of tiers together, and what a token may cost."""

    scale: dict[str, tuple[float, float]] = {}
    """Mean and standard deviation of each feature, over the requests that the numbers are of."""
    together: tuple[Pattern, ...] = ()
    """Which tiers were right together. Tiers fail on the same requests, and work longer on them: what one line of 128
    tokens did not solve, one of 256 solves less often than others. Without it they are taken to be independent."""
    price: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """What a token takes off the 1 of a right answer."""


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

    def chances(self, features: Mapping[str, float]) -> list[float]:
        """Return each tier's probability of a right answer for a request with these features."""
        standard = {
            name: (features[name] - mean) / deviation if deviation else 0.0
            for name, (mean, deviation) in self.scale.items()
            if name in features
        }
        return [tier.chance(standard) for tier in self.tiers]

    def order(self, features: Mapping[str, float], checked: bool) -> list[int]:
        """Return the places of the tiers to try, in this order.

        Args:
            found: the request's features.
            checked: a wrong answer is noticed, and the next tier tried. Then it is the order whose chance of a right
                answer less the price of the tokens that it takes is largest. Else it is one tier: that with the largest
                chance less its price.

        Of equals the cheapest is taken, so that nothing is spent on a request that no tier solves.
        """
        chances = self.chances(features)
        by_cost = sorted(range(len(self.tiers)), key=lambda place: (self.tiers[place].cost, -chances[place], place))
        most = len(by_cost) if checked else 1
        tried = [pair for size in range(1, most + 1) for pair in combinations(by_cost, size)]
        return list(max(tried, key=lambda places: (round(self._worth(places, chances), 12), -self._spent(places))))

    def _worth(self, places: Sequence[int], chances: Sequence[float]) -> float:
        left, worth, failed = 1.0, 0.0, 0
        for place in places:
            likelier, dearer = self._lift(place, failed)
            chance = min(1.0, chances[place] * likelier)
            worth += left * (chance - self.price * self.tiers[place].cost * dearer)
            left *= 1.0 - chance
            failed |= 1 << place
        return worth

    def _lift(self, place: int, failed: int) -> tuple[float, float]:
        """Return how many times as likely a tier is right, and how many times as dear it is, where others (bits of
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

    def _spent(self, places: Sequence[int]) -> float:
        return sum(self.tiers[place].cost for place in places)


def _means(patterns: Sequence[Pattern], place: int) -> tuple[float, float]:
    """Return the share of right answers of a tier, and its tokens in the mean."""
    count = sum(pattern.count for pattern in patterns)
    if not count:
        return 0.0, 0.0
    right = sum(pattern.count for pattern in patterns if place in pattern.right)
    return right / count, sum(pattern.count * pattern.costs[place] for pattern in patterns) / count
