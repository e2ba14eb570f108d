"""Texts of the planner `react` for the model, beside the texts of all planners with tools."""

from __future__ import annotations

from plait.core.ops import Function

from .options import MORE

TIRED = "You have made this very call {count} times, and its result is the same each time: go on with it, or answer."


def more_function() -> Function:
    """Return the function with which a model reads more of a long result."""
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
    """Return the function with which a model calls an agent."""
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
    """Return the function with which a model hands the conversation over."""
    return Function(
        name=name,
        description=f"Hands the conversation over, for good. {description}".strip(),
        parameters={"type": "object", "properties": {}},
    )


def cut(text: str, most: int, name: str) -> str:
    """Return a result cut to about `max_branches` characters: its head, its tail, and a note on reading the rest."""
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
    """Return the part of a result that a call of `more` requests, or the reason why it is missing."""
    match arguments:
        case {"start": int() as start, "end": int() as end} if 0 <= start < end:
            part = text[start : min(end, start + most)]
            return part or f"error: the result has {len(text):,} characters"
        case _:
            return "error: give `start` and `end` as whole numbers, start before end"
