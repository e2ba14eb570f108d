"""Scorer `tool`: a tool says how promising a text is, such as the share of tests that a program passes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free, ToolName
from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode

__all__ = ["ToolScorer"]


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
