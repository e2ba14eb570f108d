"""Options of the planner `evolve`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.access import BranchCount
from plait.core.flow import Flow
from plait.core.prompt import Prompt, Uses
from plait.core.vocabulary import N, Rounds, Shown

__all__ = ["EvolveOptions"]


class EvolveOptions(Flow):
    """The fields of `Evolve`."""

    answer: Annotated[Prompt, Uses("question", "others", "parent", "gone")] = Field(
        default=Prompt(max_tokens=1024, temperature=1.0, top_p=0.9),
        description="Writes a program. Its template is for all but the first of an island, which are asked the "
        "question alone: `{parent}` is the program to improve with what became of it, `{others}` some others, "
        "`{gone}` lines that were taken out before. The reply is a whole program, or changes of the parent.",
    )
    n: N = Field(default=4, le=64)
    rounds: Rounds = 8
    shown: Shown = 5
    repeats: Annotated[int, BranchCount()] = Field(
        default=5,
        ge=0,
        description="Timed runs of a program that passes all public cases. 0: time does not count, and the first "
        "that passes ends the search.",
    )
