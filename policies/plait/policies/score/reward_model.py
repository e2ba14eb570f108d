"""Scorer `reward-model`: a reward model's number for the text so far."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.declarations import Fidelity, ToolName
from plait.core.flow import Context
from plait.core.search import SearchNode

from .tool import ToolScorer

__all__ = ["RewardModel"]


class RewardModel(ToolScorer):
    """Calls the tool `reward` (`plait.workers.tools.reward.reward_model`) with the request and the path's text. A
    process reward model scores every step so; an outcome reward model is best asked about whole answers alone.
    """

    fidelity = Fidelity(
        "exact",
        "by `style`, a blank end of the text is left out",
        oracles=("prm-qwen-prm", "prm-math-shepherd", "prm-rlhflow", "prm-skywork"),
    )

    tool: Annotated[str, ToolName()] = Field(default="reward", description="Name of the tool.")
    question: bool = Field(default=True, description="Give it the request as `question`, too.")
    answers_only: bool = Field(default=False, description="Ask about whole answers alone; other nodes are unknown.")

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the tool's number."""
        if self.answers_only and node.answer is None:
            return None
        return await super().score(ctx, question, node)
