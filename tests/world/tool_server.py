"""An MCP server over HTTP whose calls a ledger shows: `python tool_server.py ADDRESS PORT LEDGER`."""

from __future__ import annotations

import json
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

server = MCPServer("payments")


@server.tool()
def charge(mark: str) -> str:
    """Charge somebody. A person must have allowed it, and it must never happen twice."""
    handle = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (json.dumps({"tool": "charge", "key": mark, "run": mark}) + "\n").encode())
    finally:
        os.close(handle)
    return f"charged {mark}"


if __name__ == "__main__":
    server.run(
        "streamable-http", host=sys.argv[1], port=int(sys.argv[2]),
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )  # fmt: skip
