"""Tool calls of a tree's nodes."""

from __future__ import annotations

import json

from plait.core.awaited import Called, StepFailed
from plait.core.flow import Context
from plait.core.search import Node, SearchTree
from plait.core.tools.calls import CLOSE, OPEN, calls_in, loads
from plait.core.values import as_text

__all__ = ["Calls"]


class Calls:
    """Makes the tool calls that nodes ask for. A reading call is made once a run, whoever asks for it."""

    def __init__(self, ctx: Context, tree: SearchTree) -> None:
        self._ctx, self._tree = ctx, tree
        self._tools = {spec.name: spec for spec in ctx.brief.tools}
        self._made: dict[str, Called] = {}

    async def make(self, node: Node) -> None:
        """Make the call that a node's step ends in, and set what the model sees of it. Errors are observations."""
        asked = _asked(node.step)
        if asked is None:
            return
        node.seen = f"\n<tool_response>{await self._result(node, asked)}</tool_response>\n"

    async def _result(self, node: Node, asked: str) -> str:
        read = list(calls_in(loads(asked)))
        if len(read) != 1 or read[0].wrong:
            wrong = read[0].wrong if read else ""
            return wrong or 'a call is written {"name": …, "arguments": {…}}'
        name, given = read[0].name, read[0].arguments
        if not isinstance(given, dict):
            return "the arguments of a call are an object"
        spec = self._tools.get(name)
        if spec is None:
            return f"there is no tool {name!r}: there are {', '.join(sorted(self._tools)) or 'none'}"
        if spec.side_effects:
            self._tree.commit(node)
            self._made.clear()  # what was read before may have changed
        key = name + json.dumps(given, sort_keys=True)
        made = None if spec.side_effects else self._made.get(key)
        if made is None:
            made = self._ctx.call(name, **given)
            self._made[key] = made
        try:
            return as_text(await made)
        except StepFailed as failed:
            if node.outcome == "pruned" or failed.failure.kind == "BudgetExceeded":
                raise
            return f"the call failed: {failed.failure.message}"


def _asked(step: str) -> str | None:
    """Return what stands in a step's last call."""
    start = step.rfind(OPEN)
    if start < 0:
        return None
    rest = step[start + len(OPEN) :]
    return rest.partition(CLOSE)[0].strip()
