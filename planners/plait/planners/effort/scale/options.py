"""Options of the planner `scale`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from plait.core.flow import Context, Flow
from plait.core.learning import LearningPlanner
from plait.core.prompt import Prompt, Uses
from plait.core.vocabulary import Most, N, Records, Threshold, Width

__all__ = ["ScaleOptions"]


class ScaleOptions(LearningPlanner, Flow):
    """The fields of `Scale`."""

    answer_prompts: ClassVar[tuple[str, ...]] = ("hard",)

    outline: Annotated[Prompt, Uses("question", "most")] = Field(
        default=Prompt(thinking="off", max_tokens=512, temperature=0.6),
        description="An outline. Its template has `{question}` and `{most}`, the most steps.",
    )
    probe: Annotated[Prompt, Uses("question", "plans")] = Field(
        default=Prompt(thinking="off"), description="The question which of `{plans}` is best."
    )
    judge: Annotated[Prompt, Uses()] = Field(
        default=Prompt(thinking="off"),
        description="The question how difficult a step is, in one digit, behind the step's own prompt.",
    )
    part: Annotated[Prompt, Uses("text")] = Field(
        default=Prompt(max_tokens=256, temperature=0.6, begin="no-thinking"),
        description="An easy step. Its template, behind the results that it builds on, has `{text}`, the step.",
    )
    hard: Annotated[Prompt, Uses("text")] = Field(
        default=Prompt(max_tokens=2048, temperature=0.6),
        description="A hard step, and the answer. Give it a stronger `model`, if there is one.",
    )
    by: Literal["records", "score"] = Field(
        default="records",
        description="What decides how much effort a step gets: `records` of its difficulty, or the model's `score` "
        "as in the authors' code.",
    )
    n: N = Field(default=4, le=9)
    most: Most = Field(default=8, ge=2, le=100)
    records: Records = ()
    threshold: Threshold = Field(default=0.9, ge=0.0, le=1.0)
    width: Width = Field(default=1, le=64)

    @field_validator("records")
    @classmethod
    def _pairs(cls, records: Records) -> Records:
        if any(len(record) != 2 for record in records):
            raise ValueError("a record is a difficulty in [0, 1], and 1 where the easy way was right, else 0")
        return records

    def easy(self, ctx: Context) -> Prompt:
        """Return how an easy step is asked: a text without roles has no turn that could begin."""
        return self.part if ctx.brief.task.chat() else self.part.model_copy(update={"begin": None})
