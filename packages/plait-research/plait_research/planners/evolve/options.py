"""Options of the planner `evolve`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.flow import Flow
from plait.core.vocabulary import Count, MaxPromptItems, N, Rounds

__all__ = ["EvolveOptions"]


class EvolveOptions(Flow):
    """The fields of `Evolve`."""

    answer: Annotated[CallConfig, Uses("question", "others", "parent", "gone")] = Field(
        default=CallConfig(max_tokens=1024, temperature=1.0, top_p=0.9),
        description="Writes a program. Its template is for all but the first of an island, which are asked the "
        "question alone: `{parent}` is the program to improve with what became of it, `{others}` some others, "
        "`{gone}` lines that were taken out before. The reply is a whole program, or changes of the parent.",
    )
    n: N = Field(default=4, le=64)
    rounds: Rounds = 8
    max_prompt_items: MaxPromptItems = 5
    repeats: Count = Field(
        default=5,
        ge=0,
        description="Timed runs of a program that passes all public cases. 0: time does not count, and the first "
        "that passes ends the search.",
    )
