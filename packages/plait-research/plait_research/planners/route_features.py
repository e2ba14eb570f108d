"""Planner `route_features`: chooses a planner by the features of the request, and tries the next if it was wrong."""

from __future__ import annotations

from pydantic import Field, JsonValue, model_validator

from plait.core.declarations import Fidelity
from plait.core.interfaces import PlanningContext, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.task import Task
from plait.core.values import as_text
from plait.planners._shared.steps import OnResult

from ..learning_planner import RunOutcome
from ..route.features import answer_features, features, vote_share, word_features
from ..route.ranking import Ranking, Tier, TierFit
from ._tiers import Candidates, Fit, TieredPlanner, tier_name, tier_plan

__all__ = ["RouteFeatures"]


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
