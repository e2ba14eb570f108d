"""Texts of the planner `react` for the model, beside the texts of all planners with tools."""

from __future__ import annotations

from pydantic import JsonValue

from plait.core.ops import Function

from ..._shared.compaction import shorten
from .options import MORE

TIRED = "You have made this very call {count} times, and its result is the same each time: go on with it, or answer."


def more_function() -> Function:
    """Return the function with which a model reads more of a long result."""
    result: JsonValue = {"type": "string", "description": "The result, as the cut says it"}
    whole: JsonValue = {"type": "integer"}
    return _function(
        MORE, "Returns characters `start` to `end` of a result that was cut.", id=result, start=whole, end=whole
    )


def agent_function(name: str, description: str) -> Function:
    """Return the function with which a model calls an agent."""
    question: JsonValue = {"type": "string", "description": "All that it needs to know"}
    return _function(name, description or "Works on a question by itself and returns its answer.", question=question)


def transfer_function(name: str, description: str) -> Function:
    """Return the function with which a model hands the conversation over."""
    return _function(name, f"Hands the conversation over, for good. {description}".strip())


def _function(name: str, description: str, **properties: JsonValue) -> Function:
    parameters: dict[str, JsonValue] = {"type": "object", "properties": properties}
    if properties:
        parameters["required"] = list(properties)
    return Function(name=name, description=description, parameters=parameters)


def cut(text: str, most: int, name: str) -> str:
    """Return a result cut to about `most` characters: its head, its tail, and a note on reading the rest."""
    head = most * 3 // 5
    end = min(len(text) - most + head, head + most)
    return shorten(text, most, f': call {MORE}(id="{name}", start={head}, end={end})')


def slice_of(text: str, arguments: object, most: int) -> str:
    """Return the part of a result that a call of `more` requests, or the reason why it is missing."""
    match arguments:
        case {"start": int() as start, "end": int() as end} if 0 <= start < end:
            part = text[start : min(end, start + most)]
            return part or f"error: the result has {len(text):,} characters"
        case _:
            return "error: give `start` and `end` as whole numbers, start before end"
