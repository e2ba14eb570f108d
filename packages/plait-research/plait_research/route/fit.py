"""Fits a route to recorded runs: for each planner the chance of a right answer by the request's features, and the price
of a token at which little is lost. What it says of itself is measured on requests that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from plait.core.ops import Plugin

from .ranking import MOST_TIERS, Ranking
from .recorded import RecordedRuns, Routed, RouteOutcome, RouteRow, Table, followed, key_of, mean_of

__all__ = ["RouteOutcome", "RouteReport", "RouteRow", "Routed", "compare_choices", "fit", "key_of", "report"]


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
    """The result of that order."""
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


def _share(outcome: RouteOutcome, report: RouteReport) -> float:
    best = report.tiers[report.best].tokens
    return (best - outcome.tokens) / (best - report.oracle.tokens) if best > report.oracle.tokens else 0.0


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
        lose: share of right answers that the price may cost, against the tier that is right most often; where wrong
            answers are noticed, against all tiers in turn. Of 50 to 99 requests a hundredth counts as one request.
        least: runs that a planner needs: on fewer its numbers mean nothing.
        price: what a token costs, each request given to one planner by its text; by default the price that saves most
            on requests that a route was not fitted to, with a first answer that is read, if that saves more.
        seed: of the folds.
    """
    rows = list(rows)
    planners = {key_of(row.planner): row.planner for row in rows}
    counts = {key: sum(key_of(row.planner) == key for row in rows) for key in planners}
    kept = sorted((key for key in planners if counts[key] >= least), key=lambda key: -counts[key])[:MOST_TIERS]
    if len(kept) < 2:
        return None
    recorded = RecordedRuns(rows, {key: planners[key] for key in kept}, seed)
    first, price = recorded.way(checked, lose) if price is None else (None, price)
    return recorded.ranking(first, price, counts)


def report(rows: Iterable[RouteRow], route: Ranking, checked: bool, seed: int = 0) -> RouteReport | None:
    """Return the results of routes like this one, each request routed by numbers of other requests. `None` if no
    request was run with all tiers."""
    recorded = RecordedRuns(rows, {key_of(tier.planner): tier.planner for tier in route.tiers}, seed)
    if not recorded.whole:
        return None
    first = None if route.first is None else key_of(route.tiers[route.first].planner)
    routed = recorded.crossed(checked, [(first, route.price)])[0]
    return compare_choices(recorded.table, recorded.planners, routed)


def compare_choices(table: Table, planners: Mapping[str, Plugin], routed: Routed) -> RouteReport:
    """Return the outcome of routed requests beside that of the other choices."""
    whole = list(routed)
    always = {key: mean_of([table[text][key] for text in whole]) for key in planners}
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
    came = {order: mean_of([followed(table[text], order)[0] for text in whole]) for order in orders}
    good = [order for order in orders if came[order].right >= always[name].right - 1e-9]
    hindsight = min(good, key=lambda order: came[order].tokens)
    return RouteReport(
        requests=len(whole),
        tiers=always,
        best=name,
        hindsight=hindsight,
        ordered=came[hindsight],
        route=mean_of([routed[text][0] for text in whole]),
        random=RouteOutcome(
            sum(mix[key] * always[key].right for key in order), sum(mix[key] * always[key].tokens for key in order)
        ),
        cascade=mean_of([followed(table[text], order)[0] for text in whole]),
        oracle=mean_of([best(text) for text in whole]),
    )
