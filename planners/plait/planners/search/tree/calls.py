"""Tool calls of a tree's nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from plait.core.flow import Context
from plait.core.search import SearchNode, SearchTree
from plait.core.step_handles import CallHandle, StepFailed
from plait.core.tools.calls import CLOSE, OPEN, loads, read_calls_in
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import list_functions
from plait.core.values import as_text

_TOLD = """\
Work on the task below in steps. You may call these functions, a line each:
{functions}
A step that calls one ends with <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call>; its result comes before the \
next step. {end}{give_up}

"""


def tool_instructions(tools: Sequence[ToolSpec], until: str = "", give_up: str = "") -> str:
    """Return a model's instructions before the question: its tools, and the way to end a path."""
    end = f"When the task is done, write the answer with the word `{until}` in it, without a call." if until else ""
    end = end or "When the task is done, write the answer without a call."
    dead = f" If this way cannot lead there, write `{give_up}`." if give_up else ""
    return _TOLD.format(functions=list_functions(tools), end=end, give_up=dead)


class Calls:
    """Makes the tool calls of nodes. A read-only call is made once a run, for all nodes. `drop` cancels the pruned
    branches before a call with side effects is made."""

    def __init__(self, ctx: Context, tree: SearchTree, drop: Callable[[], None]) -> None:
        self._ctx, self._tree, self._drop = ctx, tree, drop
        self._tools = {spec.name: spec for spec in ctx.brief.tools}
        self._made: dict[str, CallHandle] = {}

    async def make(self, node: SearchNode) -> None:
        """Make the call at the end of a node's step, and set the observation for the model. Errors are observations."""
        asked = _last_call(node.step)
        if asked is None:
            return
        node.seen = f"\n<tool_response>{await self._result(node, asked)}</tool_response>\n"

    async def _result(self, node: SearchNode, asked: str) -> str:
        read = list(read_calls_in(loads(asked)))
        if len(read) != 1 or read[0].wrong:
            wrong = read[0].wrong if read else ""
            return wrong or 'a call is written {"name": …, "arguments": {…}}'
        name, given = read[0].name, read[0].arguments
        if not isinstance(given, dict):
            return "the arguments of a call are an object"
        spec = self._tools.get(name)
        if spec is None:
            return f"there is no tool {name!r}: there are {', '.join(sorted(self._tools)) or 'none'}"
        # The call's side effect holds for the whole tree, so all other branches end.
        if spec.side_effects:
            self._tree.commit(node)
            self._drop()
            self._made.clear()  # results of earlier read-only calls may be stale
        key = name + json.dumps(given, sort_keys=True)
        made = None if spec.side_effects else self._made.get(key)
        if made is None:
            made = self._ctx.call(name, **given)
            self._made[key] = made
        try:
            return as_text(await made)
        except StepFailed as failed:
            # These errors do not come from the tool, and no node is left to read an observation.
            if node.outcome == "pruned" or failed.failure.kind == "BudgetExceeded":
                raise
            return f"the call failed: {failed.failure.message}"


def strip_call(step: str) -> str:
    """Return a step without the call at its end, so that no text in an argument can end a path.

    >>> strip_call('I sort it. <tool_call>{"name": "bash", "arguments": {"command": "for f in *; do rm $f; done"}}')
    'I sort it. '
    """
    start = step.rfind(OPEN)
    return step if start < 0 else step[:start]


def _last_call(step: str) -> str | None:
    """Return the text of a step's last call."""
    start = step.rfind(OPEN)
    if start < 0:
        return None
    rest = step[start + len(OPEN) :]
    return rest.partition(CLOSE)[0].strip()
