"""Options of the planner `scale`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.flow import Context, Flow
from plait.core.vocabulary import MaxBranches, N, Records, Threshold, Width

from ...learning_planner import LearningPlanner

__all__ = ["ScaleOptions"]


class ScaleOptions(LearningPlanner, Flow):
    """The fields of `Scale`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("hard",)

    outline: Annotated[CallConfig, Uses("question", "most")] = Field(
        default=CallConfig(thinking="off", max_tokens=512, temperature=0.6),
        description="An outline. Its template has `{question}` and `{most}`, the most steps.",
    )
    probe: Annotated[CallConfig, Uses("question", "plans")] = Field(
        default=CallConfig(thinking="off"), description="The question which of `{plans}` is best."
    )
    judge: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off"),
        description="The question how difficult a step is, in one digit, behind the step's own prompt.",
    )
    part: Annotated[CallConfig, Uses("text")] = Field(
        default=CallConfig(max_tokens=256, temperature=0.6, begin="no-thinking"),
        description="An easy step. Its template, behind the results that it builds on, has `{text}`, the step.",
    )
    hard: Annotated[CallConfig, Uses("text")] = Field(
        default=CallConfig(max_tokens=2048, temperature=0.6),
        description="A hard step, and the answer. Give it a stronger `model`, if there is one.",
    )
    criterion: Literal["records", "score"] = Field(
        default="records",
        description="What decides how much effort a step gets: `records` of its difficulty, or the model's `score` "
        "as in the authors' code.",
    )
    n: N = Field(default=4, le=9)
    max_branches: MaxBranches = Field(default=8, ge=2, le=100)
    records: Records = ()
    threshold: Threshold = Field(default=0.9, ge=0.0, le=1.0)
    width: Width = Field(default=1, le=64)

    @field_validator("records")
    @classmethod
    def _pairs(cls, records: Records) -> Records:
        if any(len(record) != 2 for record in records):
            raise ValueError("a record is a difficulty in [0, 1], and 1 where the easy way was right, else 0")
        return records

    def easy(self, ctx: Context) -> CallConfig:
        """Return how an easy step is asked: a text without roles has no turn that could begin."""
        return self.part if ctx.brief.task.chat() else self.part.model_copy(update={"begin": None})
