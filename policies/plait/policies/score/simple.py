"""Scorers of one figure: the task's `function`, the model's `logprob`, and a `tool`'s."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.declarations import Free, ToolName
from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode

__all__ = ["FunctionScorer", "Logprob", "ToolScorer"]


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
