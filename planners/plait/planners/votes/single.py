"""Planner `single`: one model call. It is the baseline of all other planners."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.interfaces import Planner, PlanningContext
from plait.core.plan import Plan
from plait.core.planning import call_model
from plait.core.vocabulary import Style, Width

from .._shared.steps import derive

__all__ = ["Single"]


class Single(Planner):
    """Calls the model once with the task's prompt and returns its text.

    Not a published method, but the baseline of the other planners. Defaults: the model's own temperature, 512 tokens.
    """

    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=512), description="The call. Its template has `{question}`."
    )
    style: Style = "serial"
    width: Width = 8

    def start(self, brief: PlanningContext) -> Plan:
        """Return a plan of one step, `think`."""
        pieces = self.answer.parts("{question}", question=brief.task.render(self.style, self.width))
        seed = derive(brief.request.seed, "single")
        step = call_model(brief, "single", "think", pieces, self.answer, seed=seed, label="think")
        return Plan(steps=(step,), output="think")
