"""Translate native tool calls of models trained on chat templates into the language of plans, line by line.

It reads calls of OpenAI's API (`{"type": "function", "function": {"name": …, "arguments": "…"}}`, alone, in a list or
under `tool_calls`), the plain form `{"name": …, "arguments": {…}}`, and both inside `<tool_call>` tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

from plait.core.tools.calls import CALL_HEAD, CLOSE, OPEN, loads, read_calls_in
from plait.core.values import opening

_JSON = re.compile(r"\s*(?:```(?:json)?\s*)?[\[{]")
_REFERENCE = re.compile(r"\$(?:[0-9]{1,6}|\{[0-9]{1,6}\})")
_SHOWN = 200
MAX_CHARS = 1_000_000
"""Maximum number of characters held back as possible JSON; a longer text is not a list of calls."""


class Misread(NamedTuple):
    """A call that cannot be read."""

    number: int
    """The task that the call would have been."""
    text: str
    why: str


class NativeCalls:
    """A filter before the parser of plans. Text passes unchanged; each complete call becomes a line `N. name(key=value,
    …)` at once.

    A text that begins as JSON is buffered until its end, and passes unchanged if it has no calls.
    """

    def __init__(self, after: int = 0) -> None:
        """`after`: the number before the first call's number."""
        self.count = 0
        """Number of calls so far."""
        self.misread: list[Misread] = []
        """Unreadable calls, in order."""
        self._next = after + 1
        self._held = ""
        self._json: bool | None = None
        """Whether the text begins as JSON; `None` while unknown."""

    def feed(self, delta: str) -> str:
        """Add the next piece of text and return the text for the parser."""
        self._held += delta
        if self._json is None:
            if not self._held.strip(" \t\r\n`json"):
                return ""
            self._json = _JSON.match(self._held) is not None
        if self._json and len(self._held) <= MAX_CHARS:
            return ""
        self._json = False
        return self._tags()

    def close(self) -> str:
        """Return the rest of the text for the parser after the text has ended."""
        held, self._held = self._held, ""
        if self._json:
            lines = "".join(self._lines(loads(_strip_fence(held))))
            return lines or held
        start = held.find(OPEN)
        if start < 0:
            return held
        body = held[start + len(OPEN) :]
        value = loads(body)
        if value is None and (head := CALL_HEAD.match(body)):  # the text was cut within the arguments
            value = {"name": head["name"], "arguments": body[head.end() :]}
        return held[:start] + ("".join(self._lines(value)) or held[start:])

    def _tags(self) -> str:
        """Turn complete tags into lines, and buffer a possible beginning of a tag."""
        out: list[str] = []
        at = 0
        while (start := self._held.find(OPEN, at)) >= 0:
            out.append(self._held[at:start])
            end = self._held.find(CLOSE, start)
            if end < 0:
                if len(self._held) - start > MAX_CHARS:
                    out.append(self._held[start:])
                    start = len(self._held)
                self._held = self._held[start:]
                return "".join(out)
            body = self._held[start + len(OPEN) : end]
            at = end + len(CLOSE)
            out.append("".join(self._lines(loads(body))) or self._held[start:at])
        rest = self._held[at:]
        self._held = opening(rest, [OPEN])
        return "".join(out) + rest[: len(rest) - len(self._held)]

    def _lines(self, value: JsonValue) -> Iterator[str]:
        for name, arguments, why in read_calls_in(value):
            if why or not isinstance(arguments, dict):
                self.misread.append(Misread(self._next, _format_call(name, arguments), why))
                self._next += 1
                continue
            written = ", ".join(f"{key}={_format_argument(argument)}" for key, argument in arguments.items())
            yield f"\n{self._next}. {name}({written})\n"
            self._next += 1
            self.count += 1


def _format_argument(value: JsonValue) -> str:
    """Return an argument in the language of plans; a text that is only a reference becomes the value itself."""
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=True)


def _format_call(name: str, arguments: JsonValue) -> str:
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        text = "…"
    text = " ".join(text.split())
    return f"{name[:64] or '?'}({text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'})"


def _strip_fence(text: str) -> str:
    text = text.strip()
    return text.removeprefix("```json").removeprefix("```").removesuffix("```") if text.startswith("```") else text
