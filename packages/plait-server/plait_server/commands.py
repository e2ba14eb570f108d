"""The commands of this distribution; `plait.apps.command_table` describes the form."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    "Serve": {
        "mcp": (".mcp.command", "mcp", "Offer plait as tools of the Model Context Protocol."),
    },
}
