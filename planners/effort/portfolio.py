"""Planner `portfolio`: strategies as data, one of which is drawn for each request by how well it did before."""

from __future__ import annotations

import random

from pydantic import Field, field_validator

from plait.core.errors import PluginError
from plait.core.flow import Flow
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.ops import Plugin
from plait.core.plan import Plan, Step
from plait.core.values import Frozen

from .._shared.seeds import derive

__all__ = ["Arm", "Portfolio"]


class Arm(Frozen):
    """A strategy, and what is known of it."""

    planner: Plugin
    wins: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Sum of its utilities so far; a right answer that cost nothing counts 1."""
    losses: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Runs so far, less `wins`."""


class Portfolio(Planner):
    """Draw a strategy for each request by Thompson sampling (Thompson, 1933; arXiv 1707.02038), and plan by it.

    Each arm's chance of success has the distribution Beta(1 + wins, 1 + losses); a value is drawn from each, and the
    arm with the largest plans the request. So the best is taken nearly always once it is known, and what is little
    known is still tried. The draw depends on the request's seed and text alone: a run that is resumed has the same arm.
    `plait learn strategies` counts wins and losses in journals.

    Differs from a bandit in a loop: nothing is learned while it runs. Default: `single` and `sample`, nothing known.

    Fidelity: idea; no oracle.
    """

    arms: tuple[Arm, ...] = (Arm(planner=Plugin(name="single")), Arm(planner=Plugin(name="sample")))
    """The strategies, at least one."""

    @field_validator("arms")
    @classmethod
    def _some(cls, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
        if not arms:
            raise ValueError("there is no strategy to draw: give at least one arm")
        if any(arm.planner.name == "portfolio" for arm in arms):
            raise ValueError("a portfolio cannot be an arm of a portfolio: put its arms here")
        return arms

    def choose(self, seed: int, text: str) -> Arm:
        """Return the arm that is drawn for a request."""
        rng = random.Random(derive(seed, "portfolio", text))
        drawn = [rng.betavariate(1 + arm.wins, 1 + arm.losses) for arm in self.arms]
        return self.arms[drawn.index(max(drawn))]

    def start(self, brief: Brief) -> Plan:
        """Return the plan of the arm that is drawn."""
        return self._planner(brief).start(brief)

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return the reader of the same arm."""
        return self._planner(brief).reader(step, brief)

    def _planner(self, brief: Brief) -> Planner:
        arm = self.choose(brief.request.seed, brief.request.text)
        made = brief.plugin("planner", arm.planner)
        if not isinstance(made, Planner) or isinstance(made, Flow):
            raise PluginError(f"{arm.planner.name!r} cannot be an arm: it is no planner that plans by itself (a flow?)")
        return made
