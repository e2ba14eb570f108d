"""The canonical form of a call's arguments: equivalent calls of a tool have equal forms."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import cast

from pydantic import JsonValue

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
