"""Planner `route`: run a few probes of a request, and choose the strategy from their answers."""

from __future__ import annotations

from pydantic import model_validator

from plait.core.declarations import Fidelity
from plait.core.interfaces import PlanningContext, Reader
from plait.core.plan import Plan, Step

from ..._shared.steps import delegated_reader
from .probes import Probes, RouteOptions, check_options

__all__ = ["Route"]


class Route(RouteOptions):
    """Chooses a strategy for a request, and reports the choice and its reason in `why`.

    `probe-1` … `probe-n` try the request. The first rule whose condition holds decides:

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

    Adaptive-Consistency (arXiv 2305.11860) decides when an answer leads surely; TTSPM (arXiv 2505.20522) sets the
    number of samples with a verifier. Differs from published methods: findings on serial against parallel reasoning
    contradict one another, so the order of the rules is our choice.

    Defaults: 4 probes (the smallest number that can agree surely), temperature 0.8, at most 16 samples.
    """

    fidelity = Fidelity("idea", "the order of the rules is ours")

    @model_validator(mode="after")
    def _can_be_built(self) -> Route:
        check_options(self)
        return self

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan of the probes, or the extraction plan for a prompt with several pieces."""
        return Probes(self, brief).start()

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of the probes, or of a step of the chosen strategy."""
        return delegated_reader(step, brief) or Probes(self, brief).reader(step) or super().reader(step, brief)
