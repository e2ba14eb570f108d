"""Offers functions to a server. Its refusals show which fields it takes."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from plait.core.ops import Think

from .._shared.function_calls import function, sent_names
from .wire import ServerError

log = logging.getLogger("plait.http")

WAYS = (("tool_choice", "parallel_tool_calls"), ("parallel_tool_calls",), ())
"""Which of a step's own words on its functions are sent, richest first; the choice is else `auto`. vLLM takes
functions only when it was started with a parser of calls (`--tool-call-parser`, and for `auto`
`--enable-auto-tool-choice`); llama.cpp writes several calls only when asked for parallel ones."""
_ABOUT = re.compile(r"tool|function|jinja|unrecogni[sz]ed|extra|not permitted|unknown (field|parameter|name)", re.I)


def choice(tool_choice: str) -> str | dict[str, Any]:
    """Return a step's `tool_choice` as OpenAI's API has it."""
    if tool_choice in ("auto", "required"):
        return tool_choice
    return {"type": "function", "function": {"name": tool_choice}}


class Offers:
    """The fields that each model of one server takes, as far as is known."""

    def __init__(self) -> None:
        self._ways: dict[str, int] = {}

    def fields(self, model: str, think: Think, chat: bool) -> Mapping[str, Any]:
        """Return the fields that offer a step's functions; none where the server takes none."""
        way = self._ways.get(model, 0)
        if not think.tools or not chat or way >= len(WAYS):
            return {}
        names = sent_names(think)
        offered = [function(tool, names[tool.name]) for tool in think.tools]
        offer: dict[str, Any] = {"tools": offered, "tool_choice": "auto"}
        if "tool_choice" in WAYS[way]:
            offer["tool_choice"] = choice(names.get(think.tool_choice, think.tool_choice))
        if "parallel_tool_calls" in WAYS[way]:
            offer["parallel_tool_calls"] = think.parallel_tool_calls
        return offer

    def refused(self, model: str, fields: Mapping[str, Any], trouble: ServerError) -> bool:
        """Whether a request was refused for the functions in its fields, so that it is to be sent again with less. A
        field that was refused once is not sent to that model again."""
        if "tools" not in fields or trouble.status not in (400, 404, 422, 500, 501):
            return False
        if not _ABOUT.search(trouble.message):
            return False
        # What was refused is what was sent, whatever another request has learned in the meantime.
        sent = 2 if "parallel_tool_calls" not in fields else 1 if fields["tool_choice"] == "auto" else 0
        if self._ways.get(model, 0) <= sent:
            self._ways[model] = sent + 1
            if sent + 1 >= len(WAYS):
                log.warning("%s takes no functions, so calls are asked for in words: %s", model, trouble.message)
        return True
