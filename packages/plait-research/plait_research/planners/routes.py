"""Planners that choose among planners: `route-features` by the features of the request, and the next if it was wrong;
`route-record` by the record of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import NormalDist
from typing import Annotated

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from plait.core.declarations import Fidelity, Free
from plait.core.flow import Flow, flow_step
from plait.core.interfaces import PlanningContext, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.task import Task
from plait.core.values import as_text
from plait.core.vocabulary import Confidence
from plait.planners._shared.steps import OnResult, derive, through

from ..learning_planner import LearningPlanner, RunOutcome
from ..route.features import answer_features, features, vote_share, word_features
from ..route.ranking import MOST_TIERS, Ranking, Tier, TierFit
from ._delegation import build_planner, delegated_reader, mark_owner

__all__ = ["RouteFeatures", "RouteRecord"]


_specs = TypeAdapter(list[Plugin])


Candidates = Annotated[tuple[Tier, ...], Field(min_length=1, max_length=MOST_TIERS)]
"""Planners to choose from, by name or with figures."""
Fit = Annotated[
    TierFit,
    Free(),
    Field(description="What a token costs; for features also their means, and which planners were right together."),
]


class TieredPlanner(LearningPlanner):
    """A planner that passes a request to one of several planners."""

    candidates: Candidates

    @model_validator(mode="after")
    def _ends(self) -> TieredPlanner:
        if any(tier.planner.name.startswith("route") for tier in self.candidates):
            raise ValueError("`candidates` must not contain a route: list its planners instead")
        return self

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the check of an answer, or the candidate's own reader of its step."""
        match step.state:
            case {"next": list() as left, "said": str() as why}:
                return OnResult(lambda result: _check_answer(brief, result, _specs.validate_python(left), why))
            case _:
                return delegated_reader(step, brief) or super().reader(step, brief)


def tier_plan(brief: PlanningContext, left: Sequence[Plugin], why: str, *, read: bool = False) -> Plan:
    """Return the plan of the first of several planners, with a check of its answer where others are left, or where the
    answer is to be read (`read`)."""
    tier, *rest = left
    planner = build_planner(brief, tier)
    if isinstance(planner, Flow):
        question = brief.request.text
        plan = Plan(steps=(flow_step(planner, question, "tier", label=tier.name),), output="tier")
    else:
        plan = mark_owner(planner.start(brief), tier)
    assert plan.output is not None
    names = {step.name for step in plan.steps}
    name = next(free for free in ("routed", "checked", "routed-2") if free not in names)
    goes_on = read or bool(rest)
    end = through(name, plan.output, f"{tier.name} answers; {why}", expands=goes_on, allow_failure=goes_on)
    state: JsonValue = {"next": [plugin.model_dump(mode="json") for plugin in rest], "said": why}
    end = end.model_copy(update={"label": tier.name, "state": {"read": why} if read else state if rest else None})
    return Plan(steps=(*plan.steps, end), output=name, budget=plan.budget)


def tier_name(tier: Tier) -> str:
    """Return a tier's planner in the syntax of the command line."""
    options = ",".join(f"{key}={value}" for key, value in tier.planner.options.items())
    return f"{tier.planner.name}:{options}" if options else tier.planner.name


def _check_answer(brief: PlanningContext, result: Result, left: Sequence[Plugin], why: str) -> Plan | None:
    """Return `None` if an answer is right, else the plan of the next tier."""
    value = result.value
    answer = value if result.extracted or not isinstance(value, str) else brief.task.extract(value)
    right = answer is not None and brief.task.verify(answer)
    return None if right else tier_plan(brief, left, why)


class RouteFeatures(TieredPlanner):
    """Routing by difficulty (EllieSQL, arXiv 2503.22402). The planner whose expected worth is largest gets the request:
    the chance of a right answer less `fit.price` a token.

    The chance is a logistic regression on features of the request's text (length, numbers, names, questions, tools that
    it mentions, its words), fitted by `plait learn route`. Where the task has a verifier, an answer that it finds wrong
    passes to the next planner of the order that is worth most. Where it has none, the planner `fit.first` may answer
    first: its answer is read (its length, whether its sums are right, the numbers of the request that it leaves out,
    the share of the votes that it had), and stays or is replaced by another planner's, as in FrugalGPT (arXiv
    2305.05176). Differs from the paper: a planner is known by its expected success over several runs, where there it is
    one run; a request that nothing solves goes to the cheapest planner, where there it trains the router to take the
    dearest; no model is trained.

    Defaults: the answer at once (100 tokens), one line of reasoning (400), a vote of eight (3200).
    """

    fidelity = Fidelity(
        "variant", "surface features of the text, not EllieSQL's labels and classifiers", paper="2503.22402"
    )

    candidates: Candidates = Field(
        default=(
            Tier(planner=Plugin(name="single", options={"style": "direct"}), cost=100),
            Tier(planner=Plugin(name="single"), cost=400),
            Tier(planner=Plugin(name="sample"), cost=3200),
        ),
        description="Planners to choose from, by name or with figures: the tokens of a run and the weights of its "
        "chance. By default the answer at once, one line of reasoning and a vote of eight.",
    )
    fit: Fit = TierFit()

    @model_validator(mode="after")
    def _has_a_ranking(self) -> RouteFeatures:
        self.ranking()
        return self

    def ranking(self) -> Ranking:
        """Return the planners with the numbers by which they are put in order."""
        return Ranking(tiers=self.candidates, **dict(self.fit))

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan of the first planner to try."""
        checked = type(brief.task).verify is not Task.verify
        ranking, facts = self.ranking(), _facts(brief)
        if ranking.first is not None and not checked:
            first = ranking.tiers[ranking.first]
            return tier_plan(brief, [first.planner], f"{tier_name(first)} first", read=True)
        order, chances = ranking.order(facts, checked), ranking.chances(facts)
        tried = ", then ".join(f"{tier_name(ranking.tiers[place])} ({chances[place]:.2f})" for place in order)
        return tier_plan(brief, [ranking.tiers[place].planner for place in order], f"tiers: {tried}")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of a first answer, or of a candidate's step."""
        match step.state:
            case {"read": str()}:
                return OnResult(lambda result: self._after(brief, result))
            case _:
                return super().reader(step, brief)

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return nothing: `plait learn route` fits many runs together."""
        return {}

    def _after(self, brief: PlanningContext, result: Result) -> Plan | None:
        """Return the plan of the tier that replaces a first answer; `None` where that stays."""
        ranking = self.ranking()
        assert ranking.first is not None
        facts = _facts(brief) | answer_features(brief.request.text, as_text(result.value), vote_share(result.why))
        chances = ranking.chances_after(facts)
        # A first answer that failed says nothing: the best of the others is left.
        if result.value is None:
            chances[ranking.first] = -1.0
        place = ranking.stays(chances)
        if place == ranking.first:
            return None
        tier = ranking.tiers[place]
        odds = f"{chances[place]:.2f} against {max(0.0, chances[ranking.first]):.2f}"
        return tier_plan(
            brief, [tier.planner], f"{tier_name(ranking.tiers[ranking.first])} first, then {tier_name(tier)} ({odds})"
        )


def _facts(brief: PlanningContext) -> dict[str, float]:
    return features(brief.request.text, (tool.name for tool in brief.tools)) | word_features(brief.request.text)


_LEAST = 6
"""Minimum number of a planner's runs before it may be dropped: a few runs prove little."""
_LOOKS = 10
"""Looks that share the chance to be wrong. There is one after each run, but they say nearly the same."""


class RouteRecord(TieredPlanner):
    """Draws one planner by Thompson sampling (Thompson, 1933; arXiv 1707.02038) from Beta(1 + wins, 1 + losses).

    The best is taken nearly always once it is known, and what is little known is still tried. The draw depends on the
    request's seed and text alone. `plait learn effort` counts wins and losses in journals. With `learn` each run
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
        drawn = outcome.planner
        if drawn.name == "route-record":  # drawn by its counts of then: others have ended since
            drawn = RouteRecord.model_validate(drawn.options).drawn(outcome.seed, outcome.text).planner
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
