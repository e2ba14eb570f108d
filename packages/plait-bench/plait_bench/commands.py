"""The commands of this distribution; `plait.apps.command_table` describes the form."""

from __future__ import annotations

COMMANDS = {
    "Start": {
        "demo": (".demo", "demo", "Solve puzzles by threads, answer questions by plans of tool calls, split."),
    },
}
