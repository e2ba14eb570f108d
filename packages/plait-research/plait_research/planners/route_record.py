"""Planner `route_record`: draws a planner by the record of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import NormalDist

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity
from plait.core.interfaces import PlanningContext
from plait.core.ops import Plugin
from plait.core.plan import Plan
from plait.core.vocabulary import Confidence
from plait.planners._shared.steps import derive

from ..learning_planner import RunOutcome
from ..route.ranking import Tier, TierFit
from ._tiers import Candidates, Fit, TieredPlanner, tier_plan

__all__ = ["RouteRecord"]

_LEAST = 6
"""Runs of a planner below which it is not given up: the first few say little."""
_LOOKS = 10
"""Looks that share the chance to be wrong. There is one after each run, but they say nearly the same."""


class RouteRecord(TieredPlanner):
    """Draws one planner by Thompson sampling (Thompson, 1933; arXiv 1707.02038) from Beta(1 + wins, 1 + losses).

    The best is taken nearly always once it is known, and what is little known is still tried. The draw depends on the
    request's seed and text alone. `plait learn strategies` counts wins and losses in journals. With `learn` each run
    that has ended is counted, by its task's verifier or by `feedback` of the caller, and written to `path`, so that it
    learns from live traffic: a share `trials` of the requests goes to the planner with the fewest runs, and a planner
    is tried no more once it is worse than the best with probability `confidence`. Differs from the papers by that floor
    and that end. Defaults: 2 % of trials, confidence 0.95.
    """

    fidelity = Fidelity("variant", "planners as arms, a floor of trials and an end of them", paper="1707.02038")

    candidates: Candidates = Field(
        default=(Tier(planner=Plugin(name="single")), Tier(planner=Plugin(name="sample"))),
        description="Planners to choose from, by name or with figures: their wins and losses. By default one line of "
        "reasoning and a vote of eight.",
    )
    confidence: Confidence = Field(default=0.95, gt=0.5)
    fit: Fit = TierFit()
    trials: float = Field(
        default=0.02,
        ge=0.0,
        le=1.0,
        description="With `learn`: share of the requests that go to the planner with the fewest runs, of those that "
        "may still be the best.",
    )

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan of the planner that is drawn."""
        tier = self.drawn(brief.request.seed, brief.request.text)
        return tier_plan(brief, [tier.planner], f"{tier.wins:g} wins, {tier.losses:g} losses")

    def drawn(self, seed: int, text: str) -> Tier:
        """Return the planner that is drawn for a request."""
        rng = Random(derive(seed, "route", text))
        left = contenders(self.candidates, self.confidence) if self.learn else self.candidates
        if self.learn and len(left) > 1 and rng.random() < self.trials:
            return min(left, key=lambda tier: tier.wins + tier.losses)
        chances = [rng.betavariate(1 + tier.wins, 1 + tier.losses) for tier in left]
        return left[chances.index(max(chances))]

    @classmethod
    def joined(cls, given: Mapping[str, JsonValue], known: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the options with what is known; of planners that are named here, those, with their counts."""
        options = super().joined(given, known)
        if not given.get("candidates"):
            return options
        counted = cls.model_validate(options).candidates
        named = cls.model_validate({**given, "learn": False}).candidates
        same = [next((other for other in counted if other.planner == tier.planner), tier) for tier in named]
        options["candidates"] = _dump(same)
        return options

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the planners with the run counted; nothing if the planner of the run is unknown."""
        if outcome.right is None:
            return {}
        worth = max(0.0, outcome.right - self.fit.price * outcome.tokens)
        # The counts of now are not those by which the run's planner was drawn: others have ended since.
        drawn = RouteRecord.model_validate(outcome.planner.options).drawn(outcome.seed, outcome.text).planner
        counted = [
            tier.model_copy(update={"wins": tier.wins + worth, "losses": tier.losses + 1 - worth})
            if tier.planner == drawn else tier for tier in self.candidates
        ]  # fmt: skip
        return {"candidates": _dump(counted)}


def _dump(tiers: Sequence[Tier]) -> JsonValue:
    return [tier.model_dump(mode="json", exclude_defaults=True) for tier in tiers]


def contenders(tiers: Sequence[Tier], sure: float) -> list[Tier]:
    """Return the planners that may still be the best, at least one. One is given up when it is worse than the one with
    the highest mean with a chance of `sure`; means are taken to be normal, with the variance of Beta(1 + wins,
    1 + losses), and the chance to be wrong is shared among the planners and the looks (Bonferroni)."""
    known = [_mean_and_variance(tier) for tier in tiers]
    best = max(range(len(tiers)), key=lambda place: known[place][0])
    z = NormalDist().inv_cdf(1 - (1 - min(sure, 1 - 1e-9)) / (_LOOKS * max(1, len(tiers) - 1)))
    return [
        tier
        for place, tier in enumerate(tiers)
        if place == best
        or min(tier.wins + tier.losses, tiers[best].wins + tiers[best].losses) < _LEAST
        or known[best][0] - known[place][0] <= z * math.sqrt(known[best][1] + known[place][1])
    ]


def _mean_and_variance(tier: Tier) -> tuple[float, float]:
    a, b = 1 + tier.wins, 1 + tier.losses
    return a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
