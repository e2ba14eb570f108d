"""Options of the planner `route`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Access
from plait.core.errors import PluginError
from plait.core.interfaces import MOST_STEPS, Planner
from plait.core.ops import Plugin
from plait.core.vocabulary import Confidence, MaxBranches, N, OnePlugin

__all__ = ["ALL", "PIECES", "REFINE", "THREADS", "RouteOptions"]

PIECES, REFINE, THREADS = "decompose", "refine", "threads"
"""The planners that the probes' rules may choose."""
ALL = tuple(Plugin(name=name) for name in (PIECES, REFINE, THREADS))


class RouteOptions(Planner):
    """The fields of `Route`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("probe", "answer")

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
    planners: Annotated[tuple[OnePlugin, ...], Access("planner")] = Field(
        default=(),
        description="Planners that probes may lead to, of `decompose`, `refine` and `threads`, with their options: "
        "`threads:dialect=NAME` where the model can spawn threads in a dialect that is not that of the task's name, "
        "`refine:rounds=4` where it gains from reading its own attempts, as strong reasoning models with long contexts "
        "do. What is left out is not chosen. Empty: all three.",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_probes(cls, given: object) -> object:
        """Reject removed criteria with the name of the planner that replaces each."""
        if isinstance(given, dict) and (criterion := given.get("criterion")) in ("features", "record"):
            raise PluginError(
                f"`route` decides by probes: write route-{criterion} in place of route:criterion={criterion}"
            )
        return given

    @model_validator(mode="after")
    def _candidates_are_known(self) -> RouteOptions:
        others = sorted({spec.name for spec in self.planners} - {PIECES, REFINE, THREADS})
        if others:
            raise PluginError(f"probes lead to decompose, refine and threads, not to {', '.join(others)}")
        return self
