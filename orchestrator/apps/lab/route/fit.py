"""Fits a route to recorded runs: for each planner the chance of a right answer by the request's features, and the price
of a token at which little is lost. What it says of itself is measured on requests that it was not fitted to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....core.ops import Plugin
from ....core.routing import MOST_TIERS, Pattern, Ranking, Tier, features
from ....runtime.plugins.spec import spelled

__all__ = ["FOLDS", "RouteOutcome", "RouteReport", "RouteRow", "Routed", "compare", "fit", "follow", "key_of", "report"]

FOLDS = 5
PRICES = (0.0, *(float(price) for price in np.logspace(-6, -2, 25)))
_RIDGE = 1.0
"""Weight of the squared coefficients: a feature that tells nothing gets none."""
_MOST_ODDS = 6.0


class RouteRow(NamedTuple):
    """One recorded run."""

    text: str
    planner: Plugin
    right: float
    """1 or 0; between them for the mean of several runs."""
    tokens: float


class RouteOutcome(NamedTuple):
    """What a way to choose comes to, in the mean over requests."""

    right: float
    tokens: float


@dataclass(frozen=True, slots=True)
class RouteReport:
    """A route beside the choices that it has to be better than. Means over the requests that all tiers were run on."""

    requests: int
    tiers: Mapping[str, RouteOutcome]
    """Always the same tier, cheapest first."""
    best: str
    """The tier that is right most often."""
    route: RouteOutcome
    random: RouteOutcome
    """A tier at random, each as often as the route ends in it."""
    cascade: RouteOutcome
    """All tiers in turn, cheapest first, until one is right."""
    hindsight: tuple[str, ...]
    """Of the orders that are the same for all requests and right as often as the best tier, the one that takes fewest
    tokens on these very requests: what an order alone can save."""
    ordered: RouteOutcome
    """What that order comes to."""
    oracle: RouteOutcome
    """The cheapest tier that is right; the cheapest of all where none is."""

    @property
    def saved(self) -> float:
        """Share of the oracle's saving against the best tier that the route reaches."""
        return _share(self.route, self)

    @property
    def saved_by_cascade(self) -> float:
        """The same of the cascade."""
        return _share(self.cascade, self)

    @property
    def elasticity(self) -> float | None:
        """Relative gain in right answers for a relative gain in tokens, against the cheapest tier: our reading of
        EllieSQL's token elasticity of performance (TEP), whose formula was not at hand. `None` without more tokens."""
        base = next(iter(self.tiers.values()))
        more = self.route.tokens - base.tokens
        return None if more <= 0 or not base.right else (self.route.right / base.right - 1) / (more / base.tokens)


def _share(outcome: RouteOutcome, report: RouteReport) -> float:
    best = report.tiers[report.best].tokens
    return (best - outcome.tokens) / (best - report.oracle.tokens) if best > report.oracle.tokens else 0.0


Routed = dict[str, tuple[RouteOutcome, dict[str, float]]]
"""By request: what came of it, and the chance that each tier was the last."""
Table = dict[str, dict[str, RouteOutcome]]
"""By request and tier: means over the runs of that request."""


def key_of(planner: Plugin) -> str:
    """Return a planner as it is written on a command line."""
    return spelled(planner.model_copy(update={"options": dict(sorted(planner.options.items()))}))


def fit(
    rows: Iterable[RouteRow],
    checked: bool,
    *,
    lose: float = 0.01,
    least: int = 100,
    price: float | None = None,
    seed: int = 0,
) -> Ranking | None:
    """Return the route that recorded runs speak for; `None` where fewer than two planners have `least` runs.

    Args:
        rows: runs of one task.
        checked: the task can tell a wrong answer.
        lose: share of right answers that the price may cost, against the tier that is right most often.
        least: runs that a planner needs: on fewer its numbers mean nothing.
        price: what a token costs; by default the one that saves most on requests that a route was not fitted to.
        seed: of the folds.
    """
    rows = list(rows)
    planners = {key_of(row.planner): row.planner for row in rows}
    counts = {key: sum(key_of(row.planner) == key for row in rows) for key in planners}
    kept = sorted((key for key in planners if counts[key] >= least), key=lambda key: -counts[key])[:MOST_TIERS]
    if len(kept) < 2:
        return None
    planners = {key: planners[key] for key in kept}
    table = _table(row for row in rows if key_of(row.planner) in kept)
    if price is None:
        price = _price(table, planners, checked, lose, seed)
    return _fitted(table, list(table), planners, counts, price)


def report(rows: Iterable[RouteRow], route: Ranking, checked: bool, seed: int = 0) -> RouteReport | None:
    """Return what routes like this one come to, each request routed by numbers of other requests. `None` if no request
    was run with all tiers."""
    planners = {key_of(tier.planner): tier.planner for tier in route.tiers}
    table = _table(row for row in rows if key_of(row.planner) in planners)
    if not _whole(table, planners):
        return None
    return _report(table, planners, _crossed(table, planners, checked, [route.price], seed)[0])


def follow(rows: Iterable[RouteRow], route: Ranking, checked: bool) -> Routed:
    """Return what becomes of each request that all tiers of a route were run on."""
    planners = {key_of(tier.planner): tier.planner for tier in route.tiers}
    table = _table(row for row in rows if key_of(row.planner) in planners)
    return {text: _taken(table[text], route, features(text), checked) for text in _whole(table, planners)}


def compare(rows: Iterable[RouteRow], routed: Routed) -> RouteReport:
    """Return what was done with requests (`follow`) beside the other choices. Raises `ValueError` without requests."""
    if not routed:
        raise ValueError("no request was routed")
    rows = [row for row in rows if row.text in routed]
    return _report(_table(rows), {key_of(row.planner): row.planner for row in rows}, routed)


def _whole(table: Table, planners: Mapping[str, Plugin]) -> list[str]:
    """Return the requests that all planners were run on."""
    return [text for text, row in table.items() if all(key in row for key in planners)]


def _taken(
    outcomes: Mapping[str, RouteOutcome], route: Ranking, numbers: Mapping[str, float], checked: bool
) -> tuple[RouteOutcome, dict[str, float]]:
    return _followed(outcomes, [key_of(route.tiers[place].planner) for place in route.order(numbers, checked)])


def _table(rows: Iterable[RouteRow]) -> Table:
    runs: dict[str, dict[str, list[RouteRow]]] = {}
    for row in rows:
        runs.setdefault(row.text, {}).setdefault(key_of(row.planner), []).append(row)
    return {text: {key: _mean(same) for key, same in row.items()} for text, row in runs.items()}


def _mean(rows: Sequence[RouteRow] | Sequence[RouteOutcome]) -> RouteOutcome:
    return RouteOutcome(float(np.mean([row.right for row in rows])), float(np.mean([row.tokens for row in rows])))


def _fitted(
    table: Table, texts: Sequence[str], planners: Mapping[str, Plugin], counts: Mapping[str, int], price: float
) -> Ranking:
    numbers = {text: features(text) for text in texts}
    names = list(next(iter(numbers.values())))
    values = np.array([[row[name] for name in names] for row in numbers.values()])
    means, deviations = values.mean(axis=0), values.std(axis=0)
    told = [place for place, deviation in enumerate(deviations) if deviation > 1e-9]
    standard = (values[:, told] - means[told]) / deviations[told]
    tiers: list[Tier] = []
    for key, planner in planners.items():
        at = [place for place, text in enumerate(texts) if key in table[text]]
        if not at:
            continue
        outcomes = [table[texts[place]][key] for place in at]
        bias, *weights = _logistic(standard[at], np.array([outcome.right for outcome in outcomes]))
        tiers.append(
            Tier(
                planner=planner,
                cost=round(_mean(outcomes).tokens, 3),
                bias=round(bias, 6),
                weights={names[place]: round(weight, 6) for place, weight in zip(told, weights, strict=True)},
                runs=counts[key],
            )
        )
    scale = {names[place]: (round(float(means[place]), 9), round(float(deviations[place]), 9)) for place in told}
    tiers.sort(key=lambda tier: tier.cost)
    return Ranking(tiers=tuple(tiers), scale=scale, together=_together(table, texts, tiers), price=price)


def _together(table: Table, texts: Sequence[str], tiers: Sequence[Tier]) -> tuple[Pattern, ...]:
    """Return which tiers were right together, over the requests that all were run on."""
    keys = [key_of(tier.planner) for tier in tiers]
    patterns: dict[tuple[int, ...], list[list[float]]] = {}
    for text in texts:
        if all(key in table[text] for key in keys):
            right = tuple(place for place, key in enumerate(keys) if table[text][key].right >= 0.5)
            patterns.setdefault(right, []).append([table[text][key].tokens for key in keys])
    return tuple(
        Pattern(right=right, count=len(costs), costs=tuple(round(float(cost), 3) for cost in np.mean(costs, axis=0)))
        for right, costs in sorted(patterns.items())
    )


def _logistic(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[float]:
    """Return bias and weights of a logistic regression with squared penalty, by Newton's method. `y` may lie between 0
    and 1."""
    design = np.column_stack([np.ones(len(x)), x])
    penalty = np.full(design.shape[1], _RIDGE)
    penalty[0] = 1e-3
    weights = np.zeros(design.shape[1])
    for _ in range(25):
        chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (y - chance) - penalty * weights
        curve = (design * (chance * (1 - chance))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curve, gradient)
        weights += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-8:
            break
    weights[0] = np.clip(weights[0], -_MOST_ODDS, _MOST_ODDS)
    return [float(weight) for weight in weights]


def _price(table: Table, planners: Mapping[str, Plugin], checked: bool, lose: float, seed: int) -> float:
    """Return the price that saves most and loses no more than `lose`, each request routed by numbers of others."""
    whole = _whole(table, planners)
    if not whole:
        return 0.0
    best = max(_mean([table[text][key] for text in whole]).right for key in planners)
    tried: list[tuple[float, float]] = []
    for price, routed in zip(PRICES, _crossed(table, planners, checked, PRICES, seed), strict=True):
        came = _mean([routed[text][0] for text in whole])
        if came.right >= best - lose - 1e-12:
            tried.append((came.tokens, price))
    return min(tried)[1] if tried else 0.0


def _crossed(
    table: Table, planners: Mapping[str, Plugin], checked: bool, prices: Sequence[float], seed: int
) -> list[Routed]:
    """Return, for each price, what becomes of every request that all tiers were run on, routed by numbers of the other
    folds."""
    texts = sorted(table)
    random.Random(seed).shuffle(texts)
    folds = min(FOLDS, len(texts))
    out: list[Routed] = [{} for _ in prices]
    counts = dict.fromkeys(planners, 0)
    for fold in range(folds):
        others = [text for place, text in enumerate(texts) if place % folds != fold] or texts
        route = _fitted(table, others, planners, counts, 0.0)
        for text in texts[fold::folds]:
            if len(table[text]) < len(planners):
                continue
            numbers = features(text)
            for routed, price in zip(out, prices, strict=True):
                priced = route.model_copy(update={"price": price})
                routed[text] = _taken(table[text], priced, numbers, checked)
    return out


def _followed(outcomes: Mapping[str, RouteOutcome], keys: Sequence[str]) -> tuple[RouteOutcome, dict[str, float]]:
    """Return what an order of tiers comes to on one request, and the chance that each was the last."""
    left, right, tokens = 1.0, 0.0, 0.0
    last: dict[str, float] = {}
    for place, key in enumerate(keys):
        outcome = outcomes[key]
        right += left * outcome.right
        tokens += left * outcome.tokens
        last[key] = left * (1.0 if place == len(keys) - 1 else outcome.right)
        left *= 1.0 - outcome.right
    return RouteOutcome(right, tokens), last


def _report(table: Table, planners: Mapping[str, Plugin], routed: Routed) -> RouteReport:
    whole = list(routed)
    always = {key: _mean([table[text][key] for text in whole]) for key in planners}
    always = dict(sorted(always.items(), key=lambda pair: pair[1].tokens))
    order = list(always)
    mix = {key: float(np.mean([routed[text][1].get(key, 0.0) for text in whole])) for key in order}

    def best(text: str) -> RouteOutcome:
        solving = [table[text][key] for key in order if table[text][key].right >= 0.5]
        return (
            min(solving, key=lambda outcome: outcome.tokens)
            if solving
            else min(table[text].values(), key=lambda e: e.tokens)
        )

    name = max(always, key=lambda key: (always[key].right, -always[key].tokens))
    orders = [pair for size in range(1, len(order) + 1) for pair in combinations(order, size)]
    came = {order: _mean([_followed(table[text], order)[0] for text in whole]) for order in orders}
    good = [order for order in orders if came[order].right >= always[name].right - 1e-9]
    hindsight = min(good, key=lambda order: came[order].tokens)
    return RouteReport(
        requests=len(whole),
        tiers=always,
        best=name,
        hindsight=hindsight,
        ordered=came[hindsight],
        route=_mean([routed[text][0] for text in whole]),
        random=RouteOutcome(
            sum(mix[key] * always[key].right for key in order), sum(mix[key] * always[key].tokens for key in order)
        ),
        cascade=_mean([_followed(table[text], order)[0] for text in whole]),
        oracle=_mean([best(text) for text in whole]),
    )
