"""Offers functions to a server. Its refusals show which fields it takes."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from plait.core.ops import Think

from .._shared.function_calls import function
from .wire import ServerError

log = logging.getLogger("plait.http")

WAYS: tuple[Mapping[str, Any], ...] = (
    {"tool_choice": "required", "parallel_tool_calls": True},
    {"tool_choice": "auto", "parallel_tool_calls": True},
    {"tool_choice": "auto"},
)
"""Richest first. vLLM takes functions only when it was started with a parser of calls (`--tool-call-parser`, and for
`auto` `--enable-auto-tool-choice`); llama.cpp writes several calls only when asked for parallel ones."""
_ABOUT = re.compile(r"tool|function|jinja|unrecogni[sz]ed|extra|not permitted|unknown (field|parameter|name)", re.I)


class Offers:
    """The fields that each model of one server takes, as far as is known."""

    def __init__(self) -> None:
        self._ways: dict[str, int] = {}

    def fields(self, model: str, think: Think, chat: bool) -> Mapping[str, Any]:
        """Return the fields that offer a step's functions; none where the server takes none."""
        way = max(self._ways.get(model, 0), think.tool_choice == "auto")
        if not think.tools or not chat or way >= len(WAYS):
            return {}
        return {"tools": [function(each) for each in think.tools], **WAYS[way]}

    def refused(self, model: str, fields: Mapping[str, Any], trouble: ServerError) -> bool:
        """Whether a request was refused for the functions in its fields, so that it is to be sent again with less. A
        field that was refused once is not sent to that model again."""
        if "tools" not in fields or trouble.status not in (400, 404, 422, 500, 501):
            return False
        if not _ABOUT.search(trouble.message):
            return False
        sent = next((place for place, way in enumerate(WAYS) if way.items() <= fields.items()), len(WAYS))
        if self._ways.get(model, 0) <= sent:
            self._ways[model] = sent + 1
            if sent + 1 >= len(WAYS):
                log.warning("%s takes no functions, so calls are asked for in words: %s", model, trouble.message)
        return True
