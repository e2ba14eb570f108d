"""Tool calls in a model's text: in the format of OpenAI's API, as plain JSON, and inside `<tool_call>` tags.

An invalid call gives an explanation and never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

from ..values import DEEPEST, JSON_DECODER

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_ARGUMENT = re.compile(r"[^\W\d][\w.\-]*")
"""In any script: an API in Spanish has an `año`."""
CALL_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""The text of a call up to its arguments, without its tag."""
_IN_STRING = re.compile(r'[^"\\]+|"|\\u[0-9a-fA-F]{4}|\\[^u]')
_BETWEEN = re.compile(r"\s+|\S")


class ReadCall(NamedTuple):
    """A call in a model's text. `wrong`: why the call is invalid; its arguments are then the raw text."""

    name: str
    arguments: JsonValue
    wrong: str = ""


def read_calls_in(value: JsonValue, depth: int = 8) -> Iterator[ReadCall]:
    """Yield the calls in a JSON value, in order: `{"name": …, "arguments": {…}}`, OpenAI's `{"function": {…}}`, alone,
    in a list or under `tool_calls`. Arguments given as JSON text are parsed. Lists nested deeper than `depth` are
    ignored."""
    match value:
        case dict() | list() if depth < 0:
            return
        case {"tool_calls": list() as items}:
            for item in items:
                yield from read_calls_in(item, depth - 1)
        case {"function": {"name": str() as name, **rest}}:
            yield _read(name, rest.get("arguments", {}))
        case {"name": str() as name, "arguments": arguments} | {"name": str() as name, "parameters": arguments}:
            yield _read(name, arguments)
        case list() as items:
            for item in items:
                yield from read_calls_in(item, depth - 1)
        case _:
            return


def loads(text: str) -> JsonValue:
    """Parse a text as JSON, or return `None` if it is not JSON."""
    try:
        return JSON_DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def call_text(name: str, arguments: str) -> str:
    """Return a call in the native format of models, with its tags. Arguments other than a JSON object stay raw text.

    >>> call_text("add", '{"a": 1}')
    '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    """
    value: JsonValue = {}
    if arguments.strip():
        value = loads(arguments)
    call = json.dumps({"name": name, "arguments": value if isinstance(value, dict) else arguments}, ensure_ascii=True)
    call = call.replace("<", "\\u003c")  # so that no argument can end the tag
    return f"{OPEN}{call}{CLOSE}"


class ObjectStream:
    """A JSON object that arrives in pieces: detects its end, and returns it in the spacing of `json.dumps`.

    >>> stream = ObjectStream()
    >>> [stream.feed(piece) for piece in ('{"a":', '"caf\\\\u00e', '9","b":[1,2]', '}</tool_call>')]
    ['{"a": ', '"caf', 'é", "b": [1, 2]', '}']
    >>> stream.rest
    '</tool_call>'
    """

    def __init__(self) -> None:
        self.has_ended: bool = False
        self.rest: str = ""
        """The text after the end; before it, the beginning of an escape."""
        self._depth = 0
        self._in_string = False

    def feed(self, text: str) -> str:
        """Add a piece and return its normalized text."""
        text, at, out = self.rest + text, 0, list[str]()
        while not self.has_ended and (match := (_IN_STRING if self._in_string else _BETWEEN).match(text, at)):
            at = match.end()
            out.append(self._normalize(match[0]))
        self.rest = text[at:]
        return "".join(out)

    def _normalize(self, piece: str) -> str:
        if piece == '"':
            self._in_string = not self._in_string
        elif self._in_string:
            letter = chr(int(piece[2:], 16)) if piece.startswith("\\u") else ""
            return letter if letter.isprintable() and letter not in '"\\' else piece
        self._depth += (piece in "{[") - (piece in "}]")
        self.has_ended = piece in "}]" and self._depth <= 0
        return "" if piece.isspace() else f"{piece} " if piece in ",:" else piece


def _read(name: str, arguments: JsonValue) -> ReadCall:
    if isinstance(arguments, str):
        read = loads(arguments) if arguments.strip() else {}
        arguments = read if isinstance(read, dict) else arguments
    arguments = {} if arguments is None else arguments
    return ReadCall(name, arguments, _wrong(name, arguments))


def _wrong(name: str, arguments: JsonValue) -> str:
    if not _NAME.fullmatch(name):
        return f"{name!r:.80} is not a tool name" if name else "the call names no tool"
    if not isinstance(arguments, dict):
        return "its arguments are not a JSON object: write them as one, whole"
    odd = next((key for key in arguments if not _ARGUMENT.fullmatch(key)), None)
    if odd is not None:
        return f"{odd!r:.80} is not an argument name"
    return f"its arguments are nested deeper than {DEEPEST} levels" if _deep(arguments) else ""


def _deep(value: JsonValue) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
        if not level:
            return False
    return True
