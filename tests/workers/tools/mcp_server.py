"""An MCP server for tests: on standard streams when run as a program."""

from __future__ import annotations

import asyncio

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("sums")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def note(text: str) -> dict[str, str]:
    """Write something down."""
    return {"noted": text}


@server.tool()
def broken() -> str:
    """Fail."""
    raise ToolError("no luck today")


@server.tool()
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    server.run()
