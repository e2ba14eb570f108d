"""JSON schemas of tools: a call's arguments, its value's parts, and the compatibility of values with arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from .tool import ToolSpec

Schema = Mapping[str, JsonValue]
_DEEPEST = 6
_HANDLE = re.compile(r"(?:^|_)(?:id|key|token|ref|handle|uuid|iban|sku)s?$")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")
_STANDARD = frozenset(
    {
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uuid"),
        *("regex", "binary", "byte", "password", "float", "double", "int32", "int64", "json-string", "path"),
    }
)
"""Formats that many values have."""


def snake(name: str) -> str:
    """Return a name in snake case.

    >>> snake("flightId"), snake("Order-IDs")
    ('flight_id', 'order_ids')
    """
    return "_".join(filter(None, _WORDS.split(name))).lower()


def resolve(schema: JsonValue | Schema, root: Schema) -> Schema:
    """Return a schema with its `$ref` resolved, and without `null` in its `anyOf`."""
    here = _schema(schema)
    for _ in range(_DEEPEST):
        ref, several = here.get("$ref"), here.get("anyOf") or here.get("oneOf") or here.get("allOf")
        if isinstance(ref, str) and ref.startswith("#/"):
            here = {"title": ref.rpartition("/")[2], **_referred(ref, root)}
        elif isinstance(several, list):
            real = [choice for choice in map(_schema, several) if choice.get("type") != "null"]
            if len(real) != 1:
                return here
            here = real[0]
        else:
            return here
    return {}


def _schema(value: JsonValue | Schema) -> Schema:
    return value if isinstance(value, dict) else {}


def _referred(ref: str, root: Schema) -> Schema:
    part = root
    for word in ref[2:].split("/"):
        part = _schema(part.get(word))
    return part


def arguments(parameters: Schema) -> dict[str, Schema]:
    """Return the schemas of a tool's arguments, by name."""
    parameter = parameters.get("properties")
    return (
        {name: resolve(schema, parameters) for name, schema in parameter.items()} if isinstance(parameter, dict) else {}
    )


def required_arguments(parameters: Schema) -> list[str]:
    """Return the names of the arguments that a call must have."""
    parameter = parameters.get("required")
    return [name for name in parameter if isinstance(name, str)] if isinstance(parameter, list) else []


def kind(name: str, schema: Schema) -> str:
    """Return the kind of a value beyond its JSON type, or an empty text: its own `format`, the title of an
    object, or a name that marks an identifier (`flight_id`).

    >>> kind("to", {"type": "string", "format": "airport"}), kind("flightIds", {}), kind("city", {"type": "string"})
    ('airport', 'flight_id', '')
    """
    own, title = schema.get("format"), schema.get("title")
    if isinstance(own, str) and own not in _STANDARD:
        return snake(own)
    if isinstance(title, str) and schema.get("type") == "object":
        return snake(title)
    name = snake(name)
    return name.removesuffix("s") if _HANDLE.search(name) and name not in ("id", "key", "token", "ref") else ""


def needed_kinds(parameters: Schema) -> dict[str, str]:
    """Return the required arguments that another tool may have to produce, with their kinds (`kind`)."""
    known = arguments(parameters)
    kinds: dict[str, str] = {}
    for name in required_arguments(parameters):
        schema = known.get(name, {})
        if schema.get("type") == "array":
            schema = resolve(schema.get("items"), parameters)
        if what := kind(name, schema):
            kinds[name] = what
    return kinds


def made_kinds(returns: Schema) -> frozenset[str]:
    """Return the kinds in a tool's value, named as in `needed_kinds`; the `id` of a `Flight` is also a `flight_id`."""
    return frozenset(_list_made_kinds("", returns, returns, 0))


def _list_made_kinds(name: str, schema: JsonValue | Schema, root: Schema, depth: int) -> Iterator[str]:
    part = resolve(schema, root)
    if depth > _DEEPEST:
        return
    if what := kind(name, part):
        yield what
    yield from _list_made_kinds(name, part["items"], root, depth + 1) if "items" in part else ()
    properties, title = part.get("properties"), part.get("title")
    for key, inner in properties.items() if isinstance(properties, dict) else ():
        yield from _list_made_kinds(key, inner, root, depth + 1)
        if key == "id" and isinstance(title, str):
            yield f"{snake(title)}_id"


def part(returns: Schema, path: Sequence[str]) -> Schema | None:
    """Return the schema of a part of a value (`["flights", "0", "id"]`): `{}` if unknown, `None` if the part does not
    exist."""
    root, here = returns, resolve(returns, returns)
    for key in path:
        properties = here.get("properties")
        if isinstance(properties, dict):
            if key not in properties:
                return None if here.get("additionalProperties") in (None, False) else {}
            here = resolve(properties[key], root)
        elif here.get("type") == "array":
            if not key.isdecimal():
                return None
            here = resolve(here.get("items"), root)
        elif here.get("type") in ("object", None):
            here = resolve(here.get("additionalProperties"), root)
        else:
            return None
    return here if "$defs" in here or "$defs" not in root else {**here, "$defs": root["$defs"]}


def is_assignable(given: Schema, wanted: Schema) -> bool:
    """Return whether a value of one schema fits an argument of another, by types, `format` and titles. An unknown
    property fits."""
    have, want = _types(given), _types(wanted)
    if have and want and not have & want and not ("integer" in have and "number" in want):
        return False
    for key in ("format", "title"):
        mine, theirs = given.get(key), wanted.get(key)
        if not isinstance(mine, str) or not isinstance(theirs, str) or mine == theirs:
            continue
        if key == "format" or "object" in have & want:
            return mine in _STANDARD or theirs in _STANDARD
    if "array" in have & want:
        return is_assignable(resolve(given.get("items"), given), resolve(wanted.get("items"), wanted))
    return True


def _types(schema: Schema) -> frozenset[str]:
    names = schema.get("type")
    if isinstance(names, str):
        return frozenset({names})
    if isinstance(names, list):
        return frozenset(name for name in names if isinstance(name, str) and name != "null")
    several = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(several, list):
        types = [_types(choice) for choice in several if isinstance(choice, dict) and choice.get("type") != "null"]
        return frozenset[str]().union(*types) if all(types) else frozenset()
    return frozenset()


def schema_of(value: JsonValue) -> Schema:
    """Return the type of a value that is there, as a schema."""
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case dict():
            return {"type": "object"}
        case None:
            return {}


MORE_TOOLS = "more_tools"
SHOWN = 12
"""Default number of tools that a planner shows its model."""


def tool_search_spec(hidden: int = 0) -> ToolSpec:
    """Return the tool's description for a model; `hidden`: the number of tools not yet shown to the model."""
    there = f" There are {hidden:,} that you have not been told of." if hidden else ""
    return ToolSpec(
        name=MORE_TOOLS,
        description=f"Finds further functions that you can call, by what they shall do.{there}",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the functions shall do, in a few words"},
                "k": {"type": "integer", "description": "How many at most", "default": SHOWN},
            },
            "required": ["query"],
        },
    )


def read_found_tools(value: JsonValue, tools: Iterable[ToolSpec]) -> Sequence[ToolSpec]:
    """Return the tools named in a value of `more_tools`, in the same order, without unknown names."""
    known = {tool.name: tool for tool in tools}
    rows = value if isinstance(value, list) else []
    names = [row.get("name") for row in rows if isinstance(row, dict)]
    return [known[name] for name in dict.fromkeys(names) if isinstance(name, str) and name in known]
