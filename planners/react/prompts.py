"""What the planner `react` says to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence

from plait.core.plan import Function
from plait.core.tools.turns import Dialect

from .fates import MORE

__all__ = [
    "LAST",
    "REPAIR",
    "TIRED",
    "agent_function",
    "cut",
    "instructions",
    "more_function",
    "slice_of",
    "transfer_function",
]

_NATIVE = """\
Answer the user's question. You may call these functions, a line each:
{functions}
Write a call as <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call>. Write all calls that do not need one \
another's results in the same turn: they run side by side, and their results come with the next message. When you know \
the answer, write it without any call."""
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
TIRED = "You have made this very call {count} times, and its result is the same each time: go on with it, or answer."


def instructions(functions: Sequence[Function], dialect: Dialect) -> str:
    """Return what a model is told of its functions and how to call them."""
    listed = "\n".join(
        json.dumps(
            {"name": each.name, "description": each.description, "parameters": each.parameters}, ensure_ascii=False
        )
        for each in functions
    )
    return (_NATIVE if dialect == "native" else _ACTION).format(functions=listed)


def more_function() -> Function:
    """Return the function by which a model reads on in a long result."""
    return Function(
        name=MORE,
        description="Returns characters `start` to `end` of a result that was cut.",
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "The result, as the cut says it"},
                "start": {"type": "integer"},
                "end": {"type": "integer"},
            },
            "required": ["id", "start", "end"],
        },
    )


def agent_function(name: str, description: str) -> Function:
    """Return the function by which a model calls an agent."""
    return Function(
        name=name,
        description=description or "Works on a question by itself and returns its answer.",
        parameters={
            "type": "object",
            "properties": {"question": {"type": "string", "description": "All that it needs to know"}},
            "required": ["question"],
        },
    )


def transfer_function(name: str, description: str) -> Function:
    """Return the function by which a model hands the conversation over."""
    return Function(
        name=name,
        description=f"Hands the conversation over, for good. {description}".strip(),
        parameters={"type": "object", "properties": {}},
    )


def cut(text: str, most: int, name: str) -> str:
    """Return a result of at most about `most` characters: its head and tail, and how to read what is left out."""
    if len(text) <= most:
        return text
    head = most * 3 // 5
    tail = most - head
    end = len(text) - tail
    left = (
        f'[{end - head:,} characters are left out: call {MORE}(id="{name}", start={head}, end={min(end, head + most)})]'
    )
    return f"{text[:head]}\n{left}\n{text[end:]}"


def slice_of(text: str, arguments: object, most: int) -> str:
    """Return the part of a result that a call of `more` asks for, or why there is none."""
    match arguments:
        case {"start": int() as start, "end": int() as end} if 0 <= start < end:
            part = text[start : min(end, start + most)]
            return part or f"error: the result has {len(text):,} characters"
        case _:
            return "error: give `start` and `end` as whole numbers, start before end"
