"""Options of the planner `tree`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from plait.core.call_config import CallConfig, Uses
from plait.core.flow import Flow
from plait.core.ops import Plugin
from plait.core.vocabulary import Count, Depth, FreeText, MaxBranches, N, Scorer, SearchOption, Style, Threshold

from .vote import Weight

__all__ = ["LIST", "TreeOptions"]

LIST = "\nWrite up to {width} different next steps, each on a line of its own, and nothing else:\n"


class TreeOptions(Flow):
    """The fields of `Tree`."""

    answer_calls: ClassVar[tuple[str, ...]] = ("step",)

    step: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off", max_tokens=256, temperature=1.0, stop=("\n",)),
        description="Writes one step of reasoning behind a node; `stop` ends it. At temperature 0 the children of a "
        'node are equal. `form=calls`: a step may call tools, as `<tool_call>{"name": …, "arguments": '
        "{…}}</tool_call>`; its result is shown to what follows. Reading calls are made once a run. A call with side "
        "effects gives up all other branches first.",
    )
    plan: Annotated[CallConfig, Uses("width")] = Field(
        default=CallConfig(thinking="off", max_tokens=256, temperature=1.0),
        description="Writes several next steps, `{width}` of them, one a line.",
    )
    search: SearchOption = Plugin(name="best-first")
    scorer: Scorer = Plugin(name="function")
    n: N = 16
    max_branches: MaxBranches = 256
    depth: Depth = Field(default=16, ge=1)
    width: Count | None = Field(
        default=None,
        ge=1,
        le=1_000,
        description="Branches of one trajectory: as many are asked of the model in one call (`plan`). By "
        "default a call writes one child (`step`), or five with a search that has lists.",
    )
    until: FreeText = Field(
        default="",
        description="A step that has this text in it (case apart) ends its path, in addition to the model's own end.",
    )
    give_up: FreeText = Field(
        default="",
        description="Text that marks a step as a dead end (in any case), if the prompt asks the model to write one.",
    )
    quorum: Count | None = Field(
        default=None,
        ge=0,
        description="Minimum number of finished branches; the rest are then cancelled: answers that score at least "
        "`threshold`. 0: never; by default as the search has it.",
    )
    threshold: Threshold = Field(default=0.0, ge=0.0, le=1.0)
    criterion: Weight = Field(
        default="last",
        description="Criterion that chooses the answer: a vote, in which an answer weighs the score of its `last` "
        "node, or the `mean`, least (`min`) or `product` along its path. `best`: no vote, the highest score wins. "
        "`count`: a majority vote.",
    )
    style: Style = "serial"
