"""Tool calls of a tree's nodes."""

from __future__ import annotations

import json
from typing import cast

from pydantic import JsonValue

from plait.core.awaited import Called, StepFailed
from plait.core.flow import Context
from plait.core.search import Node, SearchTree
from plait.core.values import as_text

__all__ = ["Calls"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


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
        try:
            call: JsonValue = json.loads(asked)
        except (ValueError, RecursionError) as error:
            return f"the call is not JSON: {error}"
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return 'a call is written {"name": …, "arguments": {…}}'
        name, given = cast("str", call["name"]), call.get("arguments", {})
        spec = self._tools.get(name)
        if spec is None:
            return f"there is no tool {name!r}: there are {', '.join(sorted(self._tools)) or 'none'}"
        if not isinstance(given, dict):
            return f"the arguments of {name!r} are an object, not {given!r}"
        if spec.side_effects:
            self._tree.commit(node)
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
    start = step.rfind(_OPEN)
    if start < 0:
        return None
    rest = step[start + len(_OPEN) :]
    return rest.partition(_CLOSE)[0].strip()
