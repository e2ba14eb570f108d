"""Tool calls in a model's text: in the format of OpenAI's API, as plain JSON, and inside `<tool_call>` tags.

An invalid call gives an explanation and never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, cast

from pydantic import JsonValue

from ..values import DEEPEST, JSON_DECODER

_HOPS = 16
"""Maximum length of a chain of references."""
Schema = Mapping[str, JsonValue]


def canonical(
    arguments: Mapping[str, JsonValue], parameters: Schema | None = None, excluded: Collection[str] = ()
) -> dict[str, JsonValue]:
    """Return arguments in canonical form, without those `excluded`.

    With the tool's JSON schema (`parameters`): omitted arguments get their default; text becomes a number or boolean if
    the schema allows nothing else; a whole number becomes an integer; the items of a set are sorted. A value that does
    not fit the schema stays unchanged.

    >>> canonical({"k": "3"}, {"properties": {"k": {"type": "integer"}, "page": {"default": 1}}})
    {'k': 3, 'page': 1}
    """
    value = _canonical_value(dict(arguments), parameters or {}, parameters or {})
    assert isinstance(value, dict)
    return {key: value[key] for key in sorted(value) if key not in excluded}


def canonical_text(
    arguments: Mapping[str, JsonValue], parameters: Schema | None = None, excluded: Collection[str] = ()
) -> str:
    """Return the canonical form as JSON with sorted keys, for comparison.

    >>> canonical_text({"b": 2.0, "a": 1})
    '{"a": 1, "b": 2}'
    """
    return _json(canonical(arguments, parameters, excluded))


def _json(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _canonical_value(value: JsonValue, schema: Schema, root: Schema) -> JsonValue:
    schema = _resolve(schema, root)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        schema = _matching_choice(value, [_resolve(choice, root) for choice in choices if isinstance(choice, dict)]) | {
            key: part for key, part in schema.items() if key not in ("anyOf", "oneOf")
        }
    match value:
        case dict():
            return _object(value, schema, root)
        case list():
            return _array(value, schema, root)
        case str():
            return _scalar(value, _types(schema))
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def _object(value: dict[str, JsonValue], schema: Schema, root: Schema) -> JsonValue:
    fields = _schemas(schema.get("properties"))
    other = schema.get("additionalProperties")
    rest = other if isinstance(other, dict) else {}
    given = {key: _canonical_value(item, fields.get(key, rest), root) for key, item in value.items()}
    for key, field in fields.items():
        if key not in given and "default" in field:
            given[key] = _canonical_value(field["default"], field, root)
    return given


def _array(value: list[JsonValue], schema: Schema, root: Schema) -> JsonValue:
    items = schema.get("items")
    formed = [_canonical_value(item, items if isinstance(items, dict) else {}, root) for item in value]
    if schema.get("uniqueItems") is True:
        by_text = {_json(item): item for item in formed}
        return [by_text[text] for text in sorted(by_text)]
    return formed


def _scalar(value: str, types: Collection[str]) -> JsonValue:
    """Parse a text as the required number or boolean."""
    if "string" in types or not types:
        return value
    text = value.strip()
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "null" in types and text.lower() in ("null", "none"):
        return None
    if "integer" in types or "number" in types:
        try:
            number = float(text)
            whole = int(text) if text.lstrip("+-").isdecimal() and text.isascii() else None
        except ValueError:
            return value
        if whole is not None:
            return whole
        if number.is_integer():
            return int(number)
        return number if "number" in types and abs(number) < float("inf") else value
    return value


def _matching_choice(value: JsonValue, choices: list[Schema]) -> dict[str, JsonValue]:
    """Return the first schema whose type the value has; else a schema with the types of all choices."""
    kind = _kind(value)
    for choice in choices:
        types = _types(choice)
        if kind in types or (kind == "integer" and "number" in types) or not types:
            return dict(choice)
    return {"type": cast("JsonValue", sorted({name for choice in choices for name in _types(choice)}))}


def _kind(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _types(schema: Schema) -> frozenset[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset((kinds,))
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    enum = schema.get("enum")
    if isinstance(enum, list):
        return frozenset(map(_kind, enum))
    return frozenset((_kind(schema["const"]),)) if "const" in schema else frozenset()


def _resolve(schema: Schema, root: Schema) -> Schema:
    """Return the target of a reference inside the schema (`#/$defs/…`)."""
    for _ in range(_HOPS):
        target = schema.get("$ref")
        if not isinstance(target, str) or not target.startswith("#/"):
            return schema
        place: JsonValue = dict(root)
        for part in target[2:].split("/"):
            place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            return {}
        schema = {**place, **{key: part for key, part in schema.items() if key != "$ref"}}
    return {}


def _schemas(value: JsonValue | None) -> dict[str, Schema]:
    return {key: part for key, part in value.items() if isinstance(part, dict)} if isinstance(value, dict) else {}


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
