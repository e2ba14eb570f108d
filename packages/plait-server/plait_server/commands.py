"""The commands of this distribution; `plait.apps.command_table` describes the form."""

from __future__ import annotations

COMMANDS = {
    "Serve": {
        "serve": (".command", "serve", "Serve the OpenAI API, answered by planners."),
        "mcp": (".mcp.command", "mcp", "Offer plait as tools of the Model Context Protocol."),
    },
}
