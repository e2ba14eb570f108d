"""Scorer `function`: the value of a partial solution that the task can compute."""

from __future__ import annotations

from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode

__all__ = ["FunctionScorer"]


class FunctionScorer(Scorer):
    """`Task.value` of the text so far; unknown where the task has none.

    A function of your own is a scorer too: `scorer=their_pkg.mod:name`, with `name(question, text)` that returns a
    number in [0, 1], or `None` if it cannot tell.
    """

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the task's value."""
        return ctx.brief.task.value(node.text)
