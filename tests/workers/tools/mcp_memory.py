"""An MCP memory server for tests, in the form of `@modelcontextprotocol/server-memory`: entities, one a line, in the
file that `MEMORY_FILE_PATH` names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("memory")


def _read() -> list[dict[str, Any]]:
    path = Path(os.environ["MEMORY_FILE_PATH"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@server.tool()
def create_entities(entities: list[dict[str, Any]]) -> dict[str, Any]:
    """Create entities."""
    rows = [*_read(), *entities]
    Path(os.environ["MEMORY_FILE_PATH"]).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {"entities": entities}


@server.tool()
def search_nodes(query: str) -> dict[str, Any]:
    """Find entities whose text contains a query."""
    return {"entities": [row for row in _read() if query in json.dumps(row)]}


if __name__ == "__main__":
    server.run()
