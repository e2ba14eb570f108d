"""Scorers of one figure: the task's `function`, the model's `logprob`, a `tool`'s, `perplexity`, `reward-model`."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity, Free, ToolName
from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode

__all__ = ["FunctionScorer", "Logprob", "Perplexity", "RewardModel", "ToolScorer"]


class FunctionScorer(Scorer):
    """`Task.value` of the text so far; unknown where the task has none.

    A function of your own is a scorer too: `scorer=their_pkg.mod:name`, with `name(question, text)` that returns a
    number in [0, 1], or `None` if it cannot tell.
    """

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the task's value."""
        return ctx.brief.task.value(node.text)


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


class ToolScorer(Scorer):
    """Calls a tool with `text` (the path's text) and the fields of `args`. It returns a number in [0, 1], a boolean,
    or `{"passed": …, "total": …}`."""

    tool: Annotated[str, ToolName()] = Field(description="Name of the tool.")
    args: Annotated[dict[str, JsonValue], Free()] = Field(default={}, description="More arguments.")
    question: bool = Field(default=False, description="Give it the request as `question`, too.")

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the tool's number."""
        more: dict[str, object] = {"question": question} if self.question else {}
        call = ctx.call(self.tool, text=node.text, **self.args, **more)
        match await call:
            case bool() | int() | float() as number:
                return float(number)
            case {"passed": int() | float() as passed, "total": int() | float() as total} if total:
                return float(passed) / float(total)
            # A score that makes no sense says nothing of the text: it is unknown, not 0.
            case _:
                return None


class Perplexity(ToolScorer):
    """Calls the tool `perplexity` (`plait.workers.tools.perplexity.prompt_perplexity`) with the step's own text and all
    that stands before it: the mean probability of its tokens in the eyes of the tool's model, 1 divided by the
    perplexity. It is what ATTS (arXiv 2509.15148) scores a drafted segment by.
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
