"""Planner `route`: chooses how to solve a request, by probes, by features or by the record of earlier runs."""

from __future__ import annotations

from pathlib import Path
from random import Random

from pydantic import TypeAdapter, model_validator

from plait.core.errors import PluginError
from plait.core.interfaces import Brief, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.routing import Tier, features
from plait.core.task import Task

from ..._shared.seeds import derive
from .options import RouteOptions
from .probes import Probes, check
from .tiers import named, tier_plan, tier_reader

__all__ = ["Route"]

_routes = TypeAdapter(dict[str, Plugin])


class Route(RouteOptions):
    """Chooses how to solve a request, and says in `why` what it chose and for which reason.

    `by=probes`: `probe-1` … `probe-n` try the request. The first rule whose condition holds decides:

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

    `by=features`: routing by difficulty (EllieSQL, arXiv 2503.22402). The planner whose expected worth is largest gets
    the request: the chance of a right answer less `fit.price` a token. The chance is a logistic regression on features
    of the request's text (length, numbers, names, questions, tools that it mentions), fitted by `plait learn route`.
    Where the task has a verifier, an answer that it finds wrong goes on to the next planner of the order that is worth
    most. Differs from the paper: a planner is known by its expected success over several runs, where there it is one
    run; a request that nothing solves goes to the cheapest planner, where there it trains the router to take the
    dearest; no model is trained.

    `by=record`: one planner is drawn by Thompson sampling (Thompson, 1933; arXiv 1707.02038) from Beta(1 + wins,
    1 + losses), so that the best is taken nearly always once it is known, and what is little known is still tried. The
    draw depends on the request's seed and text alone. `plait learn strategies` counts wins and losses in journals.
    Differs from a bandit in a loop: nothing is learned while it runs.

    Defaults: 4 probes (the fewest that can agree surely), temperature 0.8, 16 samples at most.

    Fidelity: variant (surface features of the text, not EllieSQL's labels and classifiers; the rules are ours); no
    oracle.
    """

    @model_validator(mode="after")
    def _ways_are_there(self) -> Route:
        if self.by == "probes":
            check(self)
        return self

    def start(self, brief: Brief) -> Plan:
        """Return the plan of what is chosen, or of the probes."""
        if (known := self._known(brief)) is not None:
            return known.start(brief)
        match self.by:
            case "features":
                checked = type(brief.task).verify is not Task.verify
                ranking = self.ranking()
                facts = features(brief.request.text, (tool.name for tool in brief.tools))
                order, chances = ranking.order(facts, checked), ranking.chances(facts)
                tried = ", then ".join(f"{named(ranking.tiers[place])} ({chances[place]:.2f})" for place in order)
                return tier_plan(brief, [ranking.tiers[place].planner for place in order], f"tiers: {tried}")
            case "record":
                tier = self.drawn(brief.request.seed, brief.request.text)
                return tier_plan(brief, [tier.planner], f"{tier.wins:g} wins, {tier.losses:g} losses")
            case _:
                return Probes(self, brief).start()

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader of the probes, or of a step of what was chosen."""
        own = tier_reader(step, brief) or Probes(self, brief).reader(step)
        return super().reader(step, brief) if own is None else own

    def drawn(self, seed: int, text: str) -> Tier:
        """Return the planner that is drawn for a request."""
        rng = Random(derive(seed, "route", text))
        chances = [rng.betavariate(1 + tier.wins, 1 + tier.losses) for tier in self.tiers]
        return self.tiers[chances.index(max(chances))]

    def _known(self, brief: Brief) -> Route | None:
        """Return the route that recorded runs of the request's task speak for. Raises `PluginError` for a file that
        cannot be read."""
        if self.path is None:
            return None
        try:
            route = _routes.validate_json(Path(self.path).read_bytes()).get(brief.request.task.name)
            return None if route is None else Route.model_validate({**route.options, "path": None})
        except (OSError, ValueError) as error:
            first = str(error).partition("\n")[0]
            raise PluginError(
                f"{self.path} has no routes ({first}): write it with `plait learn route --out FILE`"
            ) from None
