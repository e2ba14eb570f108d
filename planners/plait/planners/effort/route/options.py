"""Options of the planner `route`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Free
from plait.core.errors import PluginError
from plait.core.interfaces import MOST_STEPS
from plait.core.learning import LearningPlanner
from plait.core.ops import Plugin
from plait.core.routing import MOST_TIERS, Ranking, Tier, TierFit
from plait.core.vocabulary import Confidence, MaxBranches, N

__all__ = ["DEFAULTS", "PIECES", "REFINE", "THREADS", "RouteOptions"]

PIECES, REFINE, THREADS = "decompose", "refine", "threads"
"""The planners that probes may lead to."""
DEFAULTS: dict[str, tuple[Tier, ...]] = {
    "probes": tuple(Tier(planner=Plugin(name=name)) for name in (PIECES, REFINE, THREADS)),
    "features": (
        Tier(planner=Plugin(name="single", options={"style": "direct"}), cost=100),
        Tier(planner=Plugin(name="single"), cost=400),
        Tier(planner=Plugin(name="sample"), cost=3200),
    ),
    "record": (Tier(planner=Plugin(name="single")), Tier(planner=Plugin(name="sample"))),
}
"""What is chosen from where `candidates` is empty."""


class RouteOptions(LearningPlanner):
    """The fields of `Route`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("probe", "answer")

    criterion: Literal["probes", "features", "record"] = Field(
        default="probes",
        description="What decides: `probes` of the request, its `features`, or the `record` of earlier runs.",
    )
    probe: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.8),
        description="A probe, or one of the samples that follow. At temperature 0 they are all the same.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=4096, temperature=0.0),
        description="One deep attempt, where probes speak for it. Its `max_tokens` are also those of the notes that "
        "`refine` reads.",
    )
    n: N = Field(default=4, ge=2, le=16)
    max_branches: MaxBranches = Field(default=16, ge=2, le=MOST_STEPS)
    confidence: Confidence = Field(default=0.95, gt=0.5)
    candidates: tuple[Tier, ...] = Field(
        default=(),
        max_length=MOST_TIERS,
        description="Planners to choose from, by name or with what is known of them: with `criterion=features` costs "
        "and "
        "weights, with `criterion=record` wins and losses. With `criterion=probes` they are of `decompose`, `refine` "
        "and `threads`, "
        "with their options: `threads:dialect=NAME` where the model can spawn threads in a dialect that is not that "
        "of the task's name, `refine:rounds=4` where it gains from reading its own attempts, as strong reasoning "
        "models with long contexts do; what is left out is not chosen. Empty: those three; with `criterion=features` "
        "the "
        "answer at once, one line of reasoning and a vote of eight; with `criterion=record` the last two.",
    )
    fit: Annotated[TierFit, Free()] = Field(
        default=TierFit(),
        description="With `criterion=features`: means of the features, which planners were right together, and what a "
        "token costs.",
    )
    trials: float = Field(
        default=0.02,
        ge=0.0,
        le=1.0,
        description="With `criterion=record` and `learn`: share of the requests that go to the planner with the fewest "
        "runs, of those that may still be the best.",
    )

    @model_validator(mode="after")
    def _can_be_chosen_from(self) -> RouteOptions:
        """Refuse what could not run, before the probes are paid for."""
        if any(tier.planner.name == "route" for tier in self.candidates):
            raise ValueError("a route cannot lead to a route: put its planners here")
        if self.criterion == "features":
            self.ranking()
        if self.criterion == "probes":
            others = sorted({tier.planner.name for tier in self.candidates} - {PIECES, REFINE, THREADS})
            if others:
                raise PluginError(f"probes lead to decompose, refine and threads, not to {', '.join(others)}")
        return self

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The planners to choose from."""
        return self.candidates or DEFAULTS[self.criterion]

    def ranking(self) -> Ranking:
        """Return the planners with the numbers by which they are put in order."""
        return Ranking(tiers=self.tiers, **dict(self.fit))
