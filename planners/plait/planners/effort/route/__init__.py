"""Planner `route`: chooses how to solve a request, by probes, by features or by the record of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from pydantic import JsonValue, model_validator

from plait.core.declarations import Fidelity
from plait.core.features import answer_features, features, vote_share, word_features
from plait.core.interfaces import PlanningContext, Reader
from plait.core.learning import RunOutcome
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.routing import Tier
from plait.core.task import Task
from plait.core.values import as_text

from ..._shared.steps import derive
from .bandit import contenders
from .options import RouteOptions
from .probes import Probes, check_options
from .tiers import tier_name, tier_plan, tier_reader

__all__ = ["Route"]


class Route(RouteOptions):
    """Chooses how to solve a request, and says in `why` what it chose and for which reason.

    `criterion=probes`: `probe-1` … `probe-n` try the request. The first rule whose condition holds decides:

    | condition | what runs | the reason in `why` |
    |---|---|---|
    | the prompt splits into independent pieces | the pieces, side by side; no probes | decomposition |
    | a probe is verified | nothing more | probes |
    | too few tokens for another call | nothing more | probes |
    | no verifier, and the first answer leads surely (`confidence`) | nothing more | probes |
    | the model can spawn threads, and 4,096 tokens are left | the planner `threads` | threads |
    | the task has a verifier | samples, until one is right or one more gains less than a hundredth | best-of |
    | time for one more call only, or probes in prose | one call that reads all probes | refine |
    | no probe has an answer | one deep attempt | serial |
    | all answers differ | one deep attempt; a strong model refines its best probe | serial, sequential |
    | few tokens, and a strong model | it refines its best probe | sequential |
    | otherwise | samples, until the first answer leads surely | vote |

    Adaptive-Consistency (arXiv 2305.11860) says when an answer leads surely, TTSPM (arXiv 2505.20522) how many samples
    a verifier needs. Differs from all that is published: findings on serial against parallel reasoning contradict one
    another, so the order of the rules is our reading.

    `criterion=features`: routing by difficulty (EllieSQL, arXiv 2503.22402). The planner whose expected worth is
    largest gets the request: the chance of a right answer less `fit.price` a token. The chance is a logistic regression
    on features of the request's text (length, numbers, names, questions, tools that it mentions, its words), fitted by
    `plait learn route`. Where the task has a verifier, an answer that it finds wrong passes to the next planner of the
    order that is worth most. Where it has none, the planner `fit.first` may answer first: its answer is read (its
    length, whether its sums are right, the numbers of the request that it leaves out, the share of the votes that it
    had), and stays or is replaced by another planner's, as in FrugalGPT (arXiv 2305.05176). Differs from the paper: a
    planner is known by its expected success over several runs, where there it is one run; a request that nothing solves
    goes to the cheapest planner, where there it trains the router to take the dearest; no model is trained.

    `criterion=record`: one planner is drawn by Thompson sampling (Thompson, 1933; arXiv 1707.02038) from Beta(1 + wins,
    1 + losses), so that the best is taken nearly always once it is known, and what is little known is still tried. The
    draw depends on the request's seed and text alone. `plait learn strategies` counts wins and losses in journals.
    With `learn` each run that has ended is counted, by its task's verifier or by `feedback` of the caller, and written
    to `path`, so that it learns from live traffic: a share `trials` of the requests goes to the planner with the
    fewest runs, and a planner is tried no more once it is worse than the best with probability `confidence`.

    Defaults: 4 probes (the fewest that can agree surely), temperature 0.8, 16 samples at most.
    """

    fidelity = Fidelity(
        "variant",
        "surface features of the text, not EllieSQL's labels and classifiers; the rules are ours",
        paper="2503.22402",
    )

    @model_validator(mode="after")
    def _ways_are_there(self) -> Route:
        if self.criterion == "probes":
            check_options(self)
        return self

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan of what is chosen, or of the probes."""
        match self.criterion:
            case "features":
                checked = type(brief.task).verify is not Task.verify
                ranking = self.ranking()
                facts = _facts(brief)
                if ranking.first is not None and not checked:
                    first = ranking.tiers[ranking.first]
                    return tier_plan(brief, [first.planner], f"{tier_name(first)} first", read=True)
                order, chances = ranking.order(facts, checked), ranking.chances(facts)
                tried = ", then ".join(f"{tier_name(ranking.tiers[place])} ({chances[place]:.2f})" for place in order)
                return tier_plan(brief, [ranking.tiers[place].planner for place in order], f"tiers: {tried}")
            case "record":
                tier = self.drawn(brief.request.seed, brief.request.text)
                return tier_plan(brief, [tier.planner], f"{tier.wins:g} wins, {tier.losses:g} losses")
            case _:
                return Probes(self, brief).start()

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return a reader of the probes, or of a step of what was chosen."""
        own = tier_reader(step, brief, self._after) or Probes(self, brief).reader(step)
        return super().reader(step, brief) if own is None else own

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

    def drawn(self, seed: int, text: str) -> Tier:
        """Return the planner that is drawn for a request."""
        rng = Random(derive(seed, "route", text))
        left = contenders(self.tiers, self.confidence) if self.learn else self.tiers
        if self.learn and len(left) > 1 and rng.random() < self.trials:
            return min(left, key=lambda tier: tier.wins + tier.losses)
        chances = [rng.betavariate(1 + tier.wins, 1 + tier.losses) for tier in left]
        return left[chances.index(max(chances))]

    @classmethod
    def joined(cls, given: Mapping[str, JsonValue], known: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the options with what is known; of planners that are named here, those, with their counts."""
        options = super().joined(given, known)
        if given.get("criterion") != "record" or not given.get("candidates"):
            return options
        counted = cls.model_validate(options).tiers
        named = cls.model_validate({**given, "learn": False}).tiers
        same = [next((other for other in counted if other.planner == tier.planner), tier) for tier in named]
        options["candidates"] = [tier.model_dump(mode="json", exclude_defaults=True) for tier in same]
        return options

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the planners with the run counted; nothing if the planner of the run is unknown."""
        if self.criterion != "record" or outcome.right is None:
            return {}
        worth = max(0.0, outcome.right - self.fit.price * outcome.tokens)
        # The counts of now are not those by which the run's planner was drawn: others have ended since.
        drawn = Route.model_validate(outcome.planner.options).drawn(outcome.seed, outcome.text).planner
        counted = [
            tier.model_copy(update={"wins": tier.wins + worth, "losses": tier.losses + 1 - worth})
            if tier.planner == drawn else tier for tier in self.tiers
        ]  # fmt: skip
        return {"candidates": [tier.model_dump(mode="json", exclude_defaults=True) for tier in counted]}


def _facts(brief: PlanningContext) -> dict[str, float]:
    return features(brief.request.text, (tool.name for tool in brief.tools)) | word_features(brief.request.text)
