"""Recorded runs of several planners: routes of them, and what becomes of each request by numbers of the others."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.core.ops import Plugin
from plait.runtime.plugins.spec import spelled

from .chances import ChanceFold, TextTable
from .features import answer_features, features, word_features
from .ranking import Odds, Pattern, Ranking, Tier


class RouteRow(NamedTuple):
    """One recorded run."""

    text: str
    planner: Plugin
    right: float
    """1 or 0; between them for the mean of several runs."""
    tokens: float
    answer: str | None = None
    """The text of its answer, where it may be read."""
    agreed: float | None = None
    """The share of the votes that the answer had, if there was a vote."""


class RouteOutcome(NamedTuple):
    """The mean result of a selection rule over requests."""

    right: float
    tokens: float


Routed = dict[str, tuple[RouteOutcome, dict[str, float]]]
"""By request: what came of it, and the chance that each tier was the last."""
Table = dict[str, dict[str, RouteOutcome]]
"""By request and tier: means over the runs of that request."""


def key_of(planner: Plugin) -> str:
    """Return a planner in the syntax of the command line."""
    return spelled(planner.model_copy(update={"options": dict(sorted(planner.options.items()))}))


def table_of(rows: Iterable[RouteRow]) -> Table:
    """Return the runs by request and planner."""
    runs: dict[str, dict[str, list[RouteRow]]] = {}
    for row in rows:
        runs.setdefault(row.text, {}).setdefault(key_of(row.planner), []).append(row)
    return {text: {key: mean_of(same) for key, same in row.items()} for text, row in runs.items()}


def mean_of(rows: Sequence[RouteRow] | Sequence[RouteOutcome]) -> RouteOutcome:
    """Return the mean of several outcomes."""
    return RouteOutcome(float(np.mean([row.right for row in rows])), float(np.mean([row.tokens for row in rows])))


def followed(outcomes: Mapping[str, RouteOutcome], keys: Sequence[str]) -> tuple[RouteOutcome, dict[str, float]]:
    """Return the outcome of an order of tiers on one request, and the probability that each was the last."""
    left, right, tokens = 1.0, 0.0, 0.0
    last: dict[str, float] = {}
    for place, key in enumerate(keys):
        outcome = outcomes[key]
        right += left * outcome.right
        tokens += left * outcome.tokens
        last[key] = left * (1.0 if place == len(keys) - 1 else outcome.right)
        left *= 1.0 - outcome.right
    return RouteOutcome(right, tokens), last


def read(outcomes: Mapping[str, RouteOutcome], first: str, stays: str) -> tuple[RouteOutcome, dict[str, float]]:
    """Return the outcome of a first answer that was read, if the answer of `stays` stays."""
    right, tokens = outcomes[stays]
    return RouteOutcome(right, tokens + (0.0 if stays == first else outcomes[first].tokens)), {stays: 1.0}


Floats = NDArray[np.float64]
FOLDS = 5
_PRICES = (0.0, *(float(price) for price in np.logspace(-3, 0.5, 71)))
"""What a run of the dearest planner costs, in right answers: prices to try."""
_MOST_ROUNDED = 2
"""Times as much as it may lose, so that it may lose a whole request."""
_FIRSTS = 2
"""Number of the cheapest planners that are candidates for the first answer."""

Way = tuple[str | None, float]
"""The planner whose answer is read, if one is, and the price of a token."""


class RecordedRuns:
    """Recorded runs of some planners, with the features of the requests and of the answers that may be read."""

    def __init__(self, rows: Iterable[RouteRow], planners: Mapping[str, Plugin], seed: int = 0) -> None:
        """`seed` is that of the folds."""
        self.planners = planners
        rows = [row for row in rows if key_of(row.planner) in planners]
        self.table: Table = table_of(rows)
        self.texts = list(self.table)
        self.whole = [text for text in self.texts if all(key in self.table[text] for key in planners)]
        """Requests that all planners were run on."""
        self.answers: dict[tuple[str, str], RouteRow] = {}
        for row in rows:
            if row.answer is not None:
                self.answers.setdefault((row.text, key_of(row.planner)), row)
        self._told = {text: {**features(text), **word_features(text)} for text in self.texts}
        self._tables: dict[str | None, TextTable] = {}
        self._mixed = sorted(range(len(self.texts)), key=lambda row: self.texts[row])
        random.Random(seed).shuffle(self._mixed)
        self._known: dict[str | None, tuple[bool, Floats]] = {}

    def told(self, text: str, first: str | None = None) -> dict[str, float]:
        """Return the features of a request, and of the answer of `first` to it."""
        told = self._told[text]
        return told if first is None else {**told, **self._answer(text, first)}

    def way(self, checked: bool, lose: float) -> Way:
        """Return the way that saves most and loses no more than `lose` against the planner that is right most often, or
        against all in turn where wrong answers are noticed; each request is routed by numbers of others."""
        if not self.whole:
            return None, 0.0
        of_tiers = [mean_of([self.table[text][key] for text in self.whole]).right for key in self.planners]
        # Where wrong answers are noticed, all in turn are right as often as any of them.
        every = mean_of([followed(self.table[text], list(self.planners))[0] for text in self.whole]).right
        best = every if checked else max(of_tiers)
        # Of 75 requests 1 % is not one: a price at which one is lost would be refused, and all would be dear.
        lose = max(lose, min(1 / len(self.whole), _MOST_ROUNDED * lose))
        firsts: list[str | None] = [None, *([] if checked else self._firsts())]
        dearest = max(tier.cost for tier in self._tiers(range(len(self.texts)))) or 1.0
        ways: list[Way] = [(first, price / dearest) for first in firsts for price in _PRICES]
        tried: list[tuple[float, int]] = []
        for number, routed in enumerate(self.crossed(checked, ways)):
            outcome = mean_of([routed[text][0] for text in self.whole])
            if outcome.right >= best - lose - 1e-12:
                tried.append((outcome.tokens, number))
        return ways[min(tried)[1]] if tried else (None, 0.0)

    def ranking(self, first: str | None, price: float, counts: Mapping[str, int]) -> Ranking:
        """Return the route of all these runs."""
        rows = range(len(self.texts))
        fold = self._fold(None, rows, self._predicted(None)[0])
        odds = {key: fold.odds(weights) for key, weights in self._regressions(fold, None, rows).items()}
        after: dict[str, Odds] = {}
        scale = fold.scale
        if first is not None:
            reading = self._fold(first, rows, self._predicted(first)[0])
            after = {key: reading.odds(weights) for key, weights in self._regressions(reading, first, rows).items()}
            # Both have the same features, measured on the same requests if all were run with `first`.
            scale = fold.scale | reading.scale
            odds = {key: Odds(bias=made.bias, weights={}) for key, made in odds.items()}
        tiers = [
            Tier(planner=tier.planner, cost=tier.cost, runs=counts[key], after=after.get(key), **dict(odds[key]))
            for tier in self._tiers(rows) for key in [key_of(tier.planner)]
        ]  # fmt: skip
        kept = {name for made in (*odds.values(), *after.values()) for name in made.weights}
        return Ranking(
            tiers=tuple(tiers), scale={name: pair for name, pair in scale.items() if name in kept}, price=price,
            together=self._together(rows, tiers),
            first=None if first is None else [key_of(tier.planner) for tier in tiers].index(first),
        )  # fmt: skip

    def crossed(self, checked: bool, ways: Sequence[Way]) -> list[Routed]:
        """Return, for each way, what becomes of every request that all planners were run on, routed by numbers of the
        other folds."""
        whole, keys = set(self.whole), list(self.planners)
        out: list[Routed] = [{} for _ in ways]
        for others, fold in self._folds():
            held = [row for row in fold if self.texts[row] in whole]
            tiers = self._tiers(others)
            places = [keys.index(key_of(tier.planner)) for tier in tiers]
            ranking = Ranking(tiers=tuple(tiers), together=self._together(others, tiers))
            for first in dict.fromkeys(first for first, _ in ways):
                _, chances = self._predicted(first)
                prices = [(place, price) for place, (way, price) in enumerate(ways) if way == first]
                self._route(ranking, first, prices, held, chances[np.ix_(places, held)], checked, out)
        return out

    def _route(
        self,
        ranking: Ranking,
        first: str | None,
        prices: Sequence[tuple[int, float]],
        held: Sequence[int],
        chances: Floats,
        checked: bool,
        out: Sequence[Routed],
    ) -> None:
        """Put into `out`, for each way of one `first`, what becomes of the requests of a fold."""
        keys = [key_of(tier.planner) for tier in ranking.tiers]
        costs = np.array([tier.cost for tier in ranking.tiers])
        if first is not None:
            costs[keys.index(first)] = 0.0  # it has answered
        of_price = np.array([price for _, price in prices])[:, None]
        for place, row in enumerate(held):
            outcomes, known = self.table[self.texts[row]], [float(chance) for chance in chances[:, place]]
            if first is None:
                orders = sorted(ranking.orders(known, checked), key=lambda order: order.cost)
                worth = [order.right for order in orders] - of_price * np.array([order.tokens for order in orders])
                ends = [followed(outcomes, [keys[at] for at in order.places]) for order in orders]
            else:
                worth = np.array(known) - of_price * costs
                ends = [read(outcomes, first, key) for key in keys]
            # The first of equals is the cheapest.
            for (way, _), best in zip(prices, worth.round(12).argmax(axis=1), strict=True):
                out[way][self.texts[row]] = ends[best]

    def _firsts(self) -> list[str]:
        """Return the planners whose answers could be read: the cheapest of those that have one for each request, never
        the dearest of all."""
        keys = [key_of(tier.planner) for tier in self._tiers(range(len(self.texts)))][:-1]
        return [key for key in keys if all((text, key) in self.answers for text in self.whole)][:_FIRSTS]

    def _tiers(self, rows: Iterable[int]) -> list[Tier]:
        """Return the planners with what a run takes, cheapest first."""
        tiers: list[Tier] = []
        texts = [self.texts[row] for row in rows]
        for key, planner in self.planners.items():
            outcomes = [self.table[text][key] for text in texts if key in self.table[text]]
            if outcomes:
                tiers.append(Tier(planner=planner, cost=round(mean_of(outcomes).tokens, 3)))
        return sorted(tiers, key=lambda tier: tier.cost)

    def _together(self, rows: Iterable[int], tiers: Sequence[Tier]) -> tuple[Pattern, ...]:
        """Return the combinations of tiers that were right together, over the requests that all tiers were run on."""
        keys = [key_of(tier.planner) for tier in tiers]
        patterns: dict[tuple[int, ...], list[list[float]]] = {}
        for row in rows:
            outcomes = self.table[self.texts[row]]
            if all(key in outcomes for key in keys):
                right = tuple(place for place, key in enumerate(keys) if outcomes[key].right >= 0.5)
                patterns.setdefault(right, []).append([outcomes[key].tokens for key in keys])
        return tuple(
            Pattern(
                right=right, count=len(costs), costs=tuple(round(float(cost), 3) for cost in np.mean(costs, axis=0))
            )
            for right, costs in sorted(patterns.items())
        )

    # -- chances -----------------------------------------------------------------------------------------------------

    def _answer(self, text: str, first: str) -> dict[str, float]:
        row = self.answers.get((text, first))
        return {} if row is None or row.answer is None else answer_features(text, row.answer, row.agreed)

    def _read_by(self, first: str | None, rows: Iterable[int]) -> list[int]:
        """Return those rows that have an answer to be read."""
        return [row for row in rows if first is None or (self.texts[row], first) in self.answers]

    def _folds(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the requests of each fold, behind those of all others."""
        folds = min(FOLDS, len(self._mixed))
        for number in range(folds):
            others = [row for place, row in enumerate(self._mixed) if place % folds != number] or self._mixed
            yield others, self._mixed[number::folds]

    def _fold(self, first: str | None, rows: Iterable[int], by_features: bool) -> ChanceFold:
        if first not in self._tables:
            told = [self.told(text, first) for text in self.texts]
            self._tables[first] = TextTable(told)
        return ChanceFold(self._tables[first], self._read_by(first, rows), by_features)

    def _regressions(self, fold: ChanceFold, first: str | None, rows: Iterable[int]) -> dict[str, Floats]:
        """Return for each planner its regression on the requests that it was run on."""
        made: dict[str, Floats] = {}
        rows = self._read_by(first, rows)
        for key in self.planners:
            at = [row for row in rows if key in self.table[self.texts[row]]]
            if at:
                made[key] = fold.fit(at, [self.table[self.texts[row]][key].right for row in at])
        return made

    def _predicted(self, first: str | None) -> tuple[bool, Floats]:
        """Return whether features predict requests that they were not fitted to better than the mean does, and the
        chances by the better of the two (`_chances`). Few requests cannot bear many features: where these tell nothing,
        chances by them would send requests to a planner that is worse."""
        if first not in self._known:
            both = {by_features: self._chances(first, by_features) for by_features in (False, True)}
            by_features = self._loss(both[True]) < self._loss(both[False])
            self._known[first] = by_features, both[by_features]
        return self._known[first]

    def _loss(self, chances: Floats) -> float:
        """Return the logistic loss of the chances of all planners, over the requests that each was run on."""
        loss = 0.0
        for place, key in enumerate(self.planners):
            at = [row for row, text in enumerate(self.texts) if key in self.table[text]]
            right = np.array([self.table[self.texts[row]][key].right for row in at])
            told = chances[place, at].clip(1e-9, 1 - 1e-9)
            loss -= float((right * np.log(told) + (1 - right) * np.log(1 - told)).sum())
        return loss

    def _chances(self, first: str | None, by_features: bool) -> Floats:
        """Return the chance of each planner (rows) on each request (columns), by numbers of the other folds. That of a
        planner without any is a half."""
        chances: Floats = np.full((len(self.planners), len(self.texts)), 0.5)
        for others, held in self._folds():
            fold = self._fold(first, others, by_features)
            made = self._regressions(fold, first, others)
            for place, key in enumerate(self.planners):
                if key in made:
                    chances[place, held] = fold.chances(made[key], held)
        return chances
