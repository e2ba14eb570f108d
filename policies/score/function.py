"""Scorer `function`: a value that can be computed, by the task or by a function of yours."""

from __future__ import annotations

import importlib

from plait.core.addresses import check
from plait.core.errors import PluginError
from plait.core.flow import Context
from plait.core.search import Node, Scorer

__all__ = ["Function"]


class Function(Scorer):
    """`Task.value` of the text so far, or with `of` a pure function of yours: `of(question, text)` gives a number in
    [0, 1], or `None` if it cannot tell."""

    of: str | None = None
    """The function, as `pkg.mod:name`; it must be allowed (`--allow`)."""

    async def score(self, ctx: Context, question: str, node: Node) -> float | None:
        """Return the function's value."""
        if self.of is None:
            return ctx.brief.task.value(node.text)
        check(self.of, "scorer", plugin=True)
        module, _, name = self.of.partition(":")
        function = getattr(importlib.import_module(module), name, None)
        if not callable(function):
            raise PluginError(f"scorer 'function': {self.of} is no function")
        value = function(question, node.text)
        return float(value) if isinstance(value, int | float) else None
