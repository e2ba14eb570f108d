"""Scorers that call a tool with a model of its own: `perplexity`, `reward-model`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.declarations import Fidelity, ToolName
from plait.core.flow import Context
from plait.core.search import SearchNode
from plait.policies.score.scorers import ToolScorer

__all__ = ["Perplexity", "RewardModel"]


class Perplexity(ToolScorer):
    """Calls the tool `perplexity` (`plait_research.tools.perplexity.prompt_perplexity`) with the step's own text and
    the text before it. The score is 1 / perplexity: the mean probability of the step's tokens under the tool's model.
    ATTS (arXiv 2509.15148) scores drafted segments with it.
    """

    fidelity = Fidelity("variant", "1 / perplexity, which puts segments in the same order", paper="2509.15148")

    tool: Annotated[str, ToolName()] = Field(default="perplexity", description="Name of the tool.")
    question: bool = Field(
        default=True,
        description="Give it the request as `question`, too. Here it stands before the text; without it the text "
        "alone is read.",
    )

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the tool's number; `None` for a step without a text."""
        if not node.step.strip():
            return None
        before = node.text.removesuffix(node.step + node.seen)
        asked = question + before if self.question else before
        match await ctx.call(self.tool, text=node.step, before=asked, **self.args):
            case int() | float() as number:
                return float(number)
            case _:
                return None


class RewardModel(ToolScorer):
    """Calls the tool `reward` (`plait_research.tools.reward.reward_model`) with the request and the path's text. Use a
    process reward model for every step, and an outcome reward model only for whole answers.
    """

    fidelity = Fidelity(
        "variant",
        "by `style`, a blank end of the text is left out",
        oracles=("prm-qwen-prm", "prm-math-shepherd", "prm-rlhflow", "prm-skywork"),
    )

    tool: Annotated[str, ToolName()] = Field(default="reward", description="Name of the tool.")
    question: bool = Field(default=True, description="Give it the request as `question`, too.")
