"""Questions of a run as MCP's forms."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from pydantic import JsonValue

from plait.core.tools.context import Question


def request_of(question: Question) -> ElicitRequest:
    """Return a question as a form with one field."""
    field: dict[str, Any] = {"type": "string", "title": "Answer"}
    if question.call is not None:
        field = {"type": "boolean", "title": "Allow this call"}
    elif question.choices and all(isinstance(choice, str) for choice in question.choices):
        field["enum"] = list(question.choices)
    schema = {"type": "object", "properties": {"value": field}, "required": ["value"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=question.text, requested_schema=schema))


def value_of(response: object) -> JsonValue:
    """Return the value that the user entered in a form. Raises `ToolError` if the user declined."""
    # A user who declines or closes the form has not answered no: the run gets an error instead of an answer.
    if not isinstance(response, ElicitResult) or response.action != "accept" or response.content is None:
        raise ToolError("the run asked, and was not answered: it is given up")
    value: Any = response.content.get("value")
    return value
