"""JSON values: their text, their references to steps, and the base class of all serialized types."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from .errors import FieldError
from .messages import explain, first_of_each, json_path

StepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,200}$")]


DEEPEST = 100
"""Levels of lists and objects in a value."""
LONGEST = 4000
"""Bits of an integer: Python reads no more than 4300 digits."""


def _reject_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _parse_float(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is too large for a float")
    return value


JSON_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_float)
"""JSON decoder that rejects NaN and infinities, also as `1e400`, which Python's default decoder accepts."""


is_none = partial(operator.is_, None)
"""Return whether a value is `None`; a field's `exclude_if` in C, as a run writes some 40 of them."""


class Same:
    """A dictionary key for an object by identity: two keys are equal only if they wrap the same object."""

    __slots__ = ("given",)

    def __init__(self, given: object) -> None:
        self.given = given

    def __hash__(self) -> int:
        return id(self.given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.given is self.given


class _FieldErrors(type(BaseModel)):
    """Raise a readable `FieldError` for `Step(name=3)`. Reading data (`model_validate`) raises pydantic's error, which
    the caller rewords."""

    if not TYPE_CHECKING:  # a type checker looks at the fields

        def __call__(cls, *args: object, **fields: object) -> object:
            try:
                return super().__call__(*args, **fields)
            except ValidationError as error:
                raise FieldError(complaints(cls, error)) from None
            except RecursionError:
                raise FieldError(f"{cls.__name__}: a value is nested too deep: {DEEPEST} levels are the most") from None


def complaints(cls: type[BaseModel], error: ValidationError) -> str:
    """Return an explanation of the invalid fields of a model."""
    texts: list[str] = []
    for detail in first_of_each(error):
        subject = f"`{json_path(detail['loc'])}`" if detail["loc"] else "it"
        texts.append(explain(subject, detail, cls))
    return f"{cls.__name__}: {'; '.join(texts)}"


class Frozen(BaseModel, metaclass=_FieldErrors):
    """Base class of all serialized types: immutable, no unknown fields, documented by descriptions or docstrings.

    A constructor raises `FieldError` for fields that are not known, missing or of the wrong kind. Objects made at
    import time use `model_construct`, which checks nothing: the first check of a class builds its schema, and all
    schemas together would take a tenth of the start-up time.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __deepcopy__(self, memo: dict[int, object] | None = None) -> Self:
        return self  # pydantic would copy a default that holds a dictionary for each new object

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values of some fields, unchecked. Pydantic's own takes four times as long."""
        made = object.__new__(type(self))
        _set(made, "__dict__", {**self.__dict__, **(update or {})})
        _set(made, "__pydantic_fields_set__", {*self.__pydantic_fields_set__, *(update or ())})
        _set(made, "__pydantic_extra__", None)
        _set(made, "__pydantic_private__", self.__pydantic_private__ and {**self.__pydantic_private__})
        return made


_set = object.__setattr__


def as_text(value: JsonValue) -> str:
    """Return a string unchanged and any other JSON value as compact JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def writable(text: str) -> str:
    """Return a text with each lone surrogate replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_value(given: object, depth: int = 0, known: Mapping[Same, int] = MappingProxyType({})) -> JsonValue:
    """Return a serializable JSON value; the same object if it is serializable already.

    `known`: lists and objects known to be JSON, with their levels; they are not checked. Raises `ValueError` for an
    object that is not JSON, an integer that is too long, and a value that is nested too deeply.
    """
    match given:
        case str():
            return writable(given)
        case None | bool() | float():
            return given
        case int():
            if given.bit_length() > LONGEST:
                raise ValueError(f"an integer of {given.bit_length()} bits, and {LONGEST} are the most")
            return given
        case list() | tuple() | dict() if depth + (known.get(Same(cast("object", given)), 1) if known else 1) > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        case dict():
            fields = cast("dict[object, object]", given)
            if known and Same(fields) in known:
                return cast("JsonValue", given)
            made = {_key(key): json_value(item, depth + 1, known) for key, item in fields.items()}
            same = all(
                key is name and made[name] is item for (key, item), name in zip(fields.items(), made, strict=False)
            )
            return cast("JsonValue", given) if same and len(made) == len(fields) else made
        case list() | tuple():
            items = cast("list[object]", given)
            if known and Same(items) in known:
                return cast("JsonValue", given)
            listed = [json_value(item, depth + 1, known) for item in items]
            same = isinstance(given, list) and all(map(operator.is_, items, listed))
            return cast("JsonValue", given) if same else listed
        case _:
            raise ValueError(f"{type(given).__name__} is no JSON value")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} of an object is no string")
    return writable(key)


def json_references(value: JsonValue) -> Iterator[str]:
    """Yield the step names that `{"$ref": …}` objects inside JSON arguments refer to, in order."""
    stack: list[JsonValue] = [value]
    while stack:
        match stack.pop():
            case {"$ref": str() as name, **rest} if not rest:
                yield name
            case {"$literal": _, **rest} if not rest:
                pass
            case dict() as fields:
                stack.extend(reversed(list(fields.values())))
            case list() as items:
                stack.extend(reversed(items))
            case _:
                pass


def substitute(value: JsonValue, values: Mapping[str, JsonValue]) -> JsonValue:
    """Replace references by step values, in one pass: the inserted values are not searched for references.

    Raises `KeyError` for a reference that `values` does not have.
    """
    match value:
        case {"$ref": str() as name, **rest} if not rest:
            return values[name]
        case {"$literal": literal, **rest} if not rest:
            return literal
        case {"$text": list() as pieces, **rest} if not rest:
            return "".join(as_text(substitute(piece, values)) for piece in pieces)
        case dict():
            return {key: substitute(item, values) for key, item in value.items()}
        case list():
            return [substitute(item, values) for item in value]
        case _:
            return value


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Return the start and end of the stop text that completes first in a text; of two with the same end, the
    longer."""
    ends = [(begin + len(stop), begin) for stop in stops if stop and (begin := text.find(stop)) >= 0]
    if not ends:
        return None
    end, begin = min(ends)
    return begin, end


def opening(text: str, stops: Sequence[str]) -> str:
    """Return the longest suffix of a text that may be the start of a stop text or tag."""
    longest = max(map(len, stops), default=0) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return text[-size:]
    return ""


_OPENED = re.compile(r"\s*<think>")


def split_reasoning(text: str) -> tuple[str, str]:
    """Return the reasoning block before a model's answer, and the answer. The template may have opened the block
    already; after a truncated block, the answer is empty.

    >>> split_reasoning("<think>two and two</think>4")
    ('two and two', '4')
    """
    head, end, rest = text.partition("</think>")
    opened = _OPENED.match(text)
    if end and (opened or "<think>" not in head):
        return (head[opened.end() :] if opened else head).strip(), rest
    return (text[opened.end() :].strip(), "") if opened else ("", text)
