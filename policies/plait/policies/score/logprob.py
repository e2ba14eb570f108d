"""Scorer `logprob`: how likely the model found its own step."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode

__all__ = ["Logprob"]


class Logprob(Scorer):
    """The mean probability of a step's tokens, `e^(mean log-probability)`; no further call. With `over="path"` that of
    all tokens from the root on. Steps that were proposed in a list have none."""

    logprobs: ClassVar[bool] = True

    over: Literal["step", "path"] = Field(default="step", description="What is averaged over.")

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the mean probability."""
        nodes = [node] if self.over == "step" else node.path()[1:]
        known = [(node.tokens, node.line.logprob) for node in nodes if node.line is not None]
        # A long step counts for more than a short one: the mean is over tokens, as if the path were one step.
        pairs = [(tokens, mean) for tokens, mean in known if mean is not None and tokens]
        total = sum(tokens for tokens, _ in pairs)
        return math.exp(sum(tokens * mean for tokens, mean in pairs) / total) if total else None
