"""What a coding agent's model does when it is asked to add one to the number in a file: read, write, answer.

Each agent offers its own tool that runs commands. A turn with a result of the first command writes the second file, so
a result that is lost on the way leaves no file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TASK = "Read number.txt, add 1, and write the sum into answer.txt."
NUMBER = 41
ENDING = "The sum is in answer.txt."
_SHELLS = (
    "exec_command", "shell_command", "shell", "local_shell", "Bash", "bash", "run_shell_command",
    "run_terminal_command",
)  # fmt: skip
"""Names of the tools that run commands: Codex, Claude Code and Continue, opencode and mini-swe-agent, Qwen Code."""
_RESULT = re.compile(rf"\b{NUMBER}\b")
_EDIT = f"answer.txt\n```\n<<<<<<< SEARCH\n=======\n{NUMBER + 1}\n>>>>>>> REPLACE\n```\n"
"""The edit that aider reads from the text, whose prompt shows the files."""


def turn(body: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None] | None:
    """Return the text and the tool call of an agent's next turn; `None` for requests that are not about the task."""
    messages = body["messages"]
    whole = "\n".join(map(_text, messages))
    if TASK not in whole:
        return None
    results = [_text(message) for message in messages if message["role"] == "tool"]
    if tool := _shell(body):
        if not results:
            return "", _command(tool, "cat number.txt")
        if len(results) == 1 and _RESULT.search(results[0]):
            return "", _command(tool, f"echo {NUMBER + 1} > answer.txt")
        if tool["name"] == "bash" and "COMPLETE_TASK_AND_SUBMIT" in whole and len(results) == 2:
            return "", _command(tool, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    elif "SEARCH/REPLACE" in whole and _RESULT.search(whole):
        return _EDIT, None
    return ENDING, None


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content is a text or parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _shell(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the offered function that runs commands."""
    offered = {each["function"]["name"]: each["function"] for each in body.get("tools") or ()}
    return next((offered[name] for name in _SHELLS if name in offered), None)


def _command(tool: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return a call that runs a command, with the arguments that the tool's schema requires."""
    schema = tool.get("parameters") or {}
    fields = schema.get("properties", {})
    name = "cmd" if "cmd" in fields else "command"
    line = ["bash", "-lc", command] if fields.get(name, {}).get("type") == "array" else command
    texts = {"string": "read and write", "boolean": False, "number": 1, "integer": 1}
    required = {key: texts.get(fields.get(key, {}).get("type", "string"), "") for key in schema.get("required", ())}
    return {"name": tool["name"], "arguments": {**required, name: line}}
