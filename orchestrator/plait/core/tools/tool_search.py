"""The tool `more_tools`, with which a planner or model searches many tools. Every tool worker provides it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from .tool import ToolSpec

MORE_TOOLS = "more_tools"
SHOWN = 12
"""Default number of tools that a planner shows its model."""


def tool_search_spec(hidden: int = 0) -> ToolSpec:
    """Return the tool's description for a model; `hidden`: the number of tools not yet shown to the model."""
    there = f" There are {hidden:,} that you have not been told of." if hidden else ""
    return ToolSpec(
        name=MORE_TOOLS,
        description=f"Finds further functions that you can call, by what they shall do.{there}",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the functions shall do, in a few words"},
                "k": {"type": "integer", "description": "How many at most", "default": SHOWN},
            },
            "required": ["query"],
        },
    )


def read_found_tools(value: JsonValue, tools: Iterable[ToolSpec]) -> Sequence[ToolSpec]:
    """Return the tools named in a value of `more_tools`, in the same order, without unknown names."""
    known = {tool.name: tool for tool in tools}
    rows = value if isinstance(value, list) else []
    names = [row.get("name") for row in rows if isinstance(row, dict)]
    return [known[name] for name in dict.fromkeys(names) if isinstance(name, str) and name in known]
