"""Instructions for a model: its tools, and how to call them turn by turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait.core.ops import Function
from plait.core.tools.tool import ToolSpec
from plait.core.tools.turns import Dialect, describe_functions, list_functions

_NATIVE = """\
Answer the user's question. {functions}Write all calls that do not need one another's results in the same turn: they \
run side by side, and their results come with the next message. When you know the answer, write it without any call."""
_ACTION = """\
Answer the user's question. You may use these functions, a line each:
{functions}
Write a line `Thought: …`, then a line `Action: name({{"argument": …}})` for each call; calls that do not need one \
another's results go into the same turn. Their results come as `Observation`. When you know the answer, write a line \
`Answer: …` and no action."""
LAST = "No more calls can be made. Answer the question now, with what you know."
REPAIR = {
    "native": 'Write a call as <tool_call>{"name": …, "arguments": {…}}</tool_call>, or answer without any call.',
    "action": 'Write a call as a line `Action: name({"argument": …})`, or answer with a line `Answer: …`.',
}


def to_functions(tools: Iterable[ToolSpec]) -> tuple[Function, ...]:
    """Return tools as function definitions for a model with native function calls."""
    return tuple(Function(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in tools)


def build_instructions(functions: Sequence[Function], dialect: Dialect) -> str:
    """Return a model's instructions: its functions and how to call them. Servers with native functions get them only as
    functions (`without_words`)."""
    if dialect == "native":
        return _NATIVE.format(functions=describe_functions(functions))
    return _ACTION.format(functions=list_functions(functions))
