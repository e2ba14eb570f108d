"""The form of a typed answer: its JSON schema, the schema's text in a prompt, and the parser of the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import FunctionType, UnionType
from typing import NotRequired, Required, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import TypedDict

from .errors import FieldError
from .messages import explain, first_of_each, json_path
from .values import JSON_DECODER, Frozen, json_value, split_reasoning

_STARTS = 200
"""Maximum number of start positions tried when searching for a JSON value."""
_START = re.compile(r"[\[{]")
ADAPTERS: dict[str, TypeAdapter[object]] = {}
"""Types requested by runs of this process, by schema text. A type may check more than its schema does."""


class Form(Frozen):
    """The required form of a run's answer. `of` makes it from a type."""

    schema_: dict[str, JsonValue]
    """JSON schema of an object. Any other value is wrapped in the object's field `value` (`wrapped`)."""
    wrapped: bool = False

    @classmethod
    def of(cls, kind: object) -> tuple[Form, TypeAdapter[object] | None]:
        """Return the form, with its value parser, of a JSON schema or of a type that pydantic supports: a model,
        dataclass or TypedDict, for example. Raises `FieldError`."""
        if isinstance(kind, dict):
            schema = cast("dict[str, JsonValue]", _schema_of(cast("dict[object, object]", kind)))
            adapter = None
        else:
            if isinstance(kind, str | FunctionType):
                raise FieldError(f"output={kind!r:.80} is no type: give a class, or list[…] of one")
            try:
                adapter = TypeAdapter[object](cast("type[object]", _modernize(kind)))
                schema = cast("dict[str, JsonValue]", adapter.json_schema())
            except (
                *(PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError),
                *(NameError, RecursionError),
            ):
                raise FieldError(
                    f"output={kind!r:.80} has no JSON schema: give a BaseModel, a dataclass, a TypedDict, a list[…] or "
                    "dict[…] of such types, or the schema itself as a dictionary. Before Python 3.12 a TypedDict in a "
                    "class or in itself must be typing_extensions.TypedDict"
                ) from None
        form = cls(schema_=schema) if _is_object(schema) else cls(schema_=_wrapped(schema), wrapped=True)
        if adapter is not None:
            ADAPTERS[form.key] = adapter
        return form, adapter

    @property
    def key(self) -> str:
        """The schema as text."""
        return json.dumps(self.schema_, sort_keys=True)

    @property
    def words(self) -> str:
        """The prompt text that asks a model for the form."""
        schema = json.dumps(self.schema_, ensure_ascii=False)
        return f"Answer with one JSON object and nothing else. It has to fit this JSON schema:\n{schema}"

    def read(self, text: str, check: Callable[[JsonValue], str]) -> tuple[JsonValue, str]:
        """Return the value in a text and an empty text, or the reason why the text holds no value. `check` returns a
        value's violation of the schema, or an empty text."""
        data, is_there = find_json(text)
        if not is_there:
            return None, "there is no JSON object in it"
        if wrong := check(data):
            wrapping: JsonValue = {"value": data}
            if not self.wrapped or check(wrapping):  # a model may leave the wrapping out
                return None, wrong
            data = wrapping
        value: JsonValue = cast("dict[str, JsonValue]", data)["value"] if self.wrapped else data
        adapter = ADAPTERS.get(self.key)
        if adapter is not None:
            try:
                adapter.validate_json(json.dumps(value))
            except ValidationError as error:
                detail = first_of_each(error)[0]
                return None, explain(f"`{json_path(detail['loc'])}`" if detail["loc"] else "it", detail)
            except Exception as error:  # a validator of the user's own
                return None, f"{type(error).__name__}: {error}"
        return value, ""


def json_in(text: str) -> JsonValue:
    """Return the JSON value in a text (`find_json`), or `None`."""
    return find_json(text)[0]


def find_json(text: str) -> tuple[JsonValue, bool]:
    """Return the JSON value in a text, and whether there is one. The value is the whole text, its last code block, or
    its longest object or list. A leading reasoning block is skipped."""
    text = split_reasoning(text)[1].strip()
    blocks = [part.partition("\n")[2] for part in text.split("```")[1::2]]
    # Earlier blocks may be drafts; the last block holds the final value.
    for block in (text, *reversed(blocks)):
        try:
            return json_value(JSON_DECODER.decode(block)), True
        except (ValueError, RecursionError):
            pass
    longest: JsonValue = None
    most = end = 0
    for _, start in zip(range(_STARTS), _START.finditer(text), strict=False):
        if start.start() < end:  # within the value before
            continue
        try:
            value, stop = JSON_DECODER.raw_decode(text, start.start())
            value = json_value(value)
        except (ValueError, RecursionError):
            continue
        if stop - start.start() > most:
            longest, most = value, stop - start.start()
        end = stop
    return longest, most > 0


def _modernize(kind: object) -> object:
    """Return a `typing.TypedDict`, alone or in a generic type, as typing_extensions': pydantic needs it before 3.12."""
    if arguments := get_args(kind):
        new = tuple(_modernize(argument) for argument in arguments)
        generic = Union if get_origin(kind) is UnionType else get_origin(kind)
        return kind if new == arguments else cast("Mapping[object, object]", generic)[new]
    if not is_typeddict(kind) or type(kind).__module__ != "typing":
        return kind
    hints = {name: _modernize(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    required = cast("frozenset[str]", vars(kind)["__required_keys__"])
    for name, hint in hints.items():
        inner = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        hints[name] = Required[inner] if name in required else NotRequired[inner]
    return cast("Callable[..., object]", TypedDict)(cast("type", kind).__name__, hints)


def _schema_of(kind: dict[object, object]) -> JsonValue:
    try:
        schema = json_value(kind)
    except ValueError as error:
        raise FieldError(f"output: {error}") from None
    if not isinstance(schema, dict) or not ({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"} & set(schema)):
        raise FieldError(f"output={kind!r:.80} is no JSON schema: it says no `type`")
    return schema


def _is_object(schema: dict[str, JsonValue]) -> bool:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        defs = schema.get("$defs")
        inner = defs.get(name) if isinstance(defs, dict) else None
        return isinstance(inner, dict) and inner.get("type") == "object"
    return schema.get("type") == "object"


def _wrapped(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    inner = {key: value for key, value in schema.items() if key not in ("$defs", "$schema")}
    outer: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"value": inner},
        "required": ["value"],
        "additionalProperties": False,
    }
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})
