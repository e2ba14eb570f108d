"""Validates values by JSON schemas from untrusted data: no fetches, regular expressions in linear time (`regex`), and a
bounded number of steps even for a recursive schema.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Protocol, cast

import attrs
from jsonschema import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import (
    extend,  # pyright: ignore[reportUnknownVariableType]
    validator_for,
)
from jsonschema_specifications import REGISTRY  # pyright: ignore[reportMissingTypeStubs]
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, SchemaRegistry, specification_with

from .regex import expression

STEPS = 10_000
"""Maximum evaluations of a schema keyword, or of an expression on a name, per check: some hundredths of a second,
because a check may run on the event loop."""
OF_SCHEMAS = 100_000
"""The same for a check of a schema itself."""


class _Steps:
    """Remaining steps of a check. Takes the place of a validator's format checker, which is passed to the validators of
    all parts; formats are not validated here."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def check(self, instance: object, format: object) -> None:
        """Take every format."""

    def spend(self, steps: int = 1) -> None:
        """Count some. Raises `ValueError` where none are left."""
        self._left -= steps
        if self._left < 0:
            raise ValueError(f"the schema takes more than {self._most:,} steps to check: make it or the value smaller")


class _Validator(Protocol):
    format_checker: _Steps
    evolve: Callable[..., _Validator]

    def __init__(self, schema: object, *, registry: SchemaRegistry, format_checker: _Steps) -> None: ...
    def iter_errors(self, instance: object) -> Iterator[ValidationError]: ...
    def descend(
        self, instance: object, schema: object, path: str | None = None, schema_path: str | None = None
    ) -> Iterator[ValidationError]: ...


Rule = Callable[[_Validator, object, object, Mapping[str, object]], Iterator[ValidationError]]


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in a value."""

    path: tuple[str | int, ...]
    json_path: str
    message: str


def check_schema(schema: Mapping[str, JsonValue]) -> None:
    """Raise `ValueError` for an invalid JSON schema, also for one with a reference to another document or to nothing,
    with an expression that RE2 rejects, or that is too large."""
    kind = validator_for(cast("dict[str, object]", schema))
    meta = cast("dict[str, object]", kind.META_SCHEMA)
    for error in _errors(meta, dict(schema), REGISTRY, most=1, steps=OF_SCHEMAS):
        raise ValueError(f"this is no JSON schema: at {error.json_path}: {error.message[:200]}")
    _check_parts(schema)


def faults(schema: Mapping[str, JsonValue], value: JsonValue, most: int = 1) -> list[Fault]:
    """Return the faults of a value, `most` at most.

    Raises `ValueError` for an invalid schema (`check_schema`), and for a check with too many steps.
    """
    errors = _errors(cast("dict[str, object]", schema), value, Registry(), most)
    return [Fault(tuple(error.absolute_path), error.json_path, error.message) for error in errors]


def _errors(
    schema: dict[str, object], value: object, registry: SchemaRegistry, most: int, steps: int = STEPS
) -> list[ValidationError]:
    try:
        validator = _bounded_validator(validator_for(schema))(schema, registry=registry, format_checker=_Steps(steps))
        return list(itertools.islice(validator.iter_errors(value), most))
    except Unresolvable as error:
        raise ValueError(f"the schema refers to {error.ref!r:.200}, which is not in it") from None
    except (SchemaError, RecursionError, TypeError, AttributeError) as error:
        raise ValueError(f"the schema makes no sense: {error!s:.200}") from None


def _check_parts(schema: Mapping[str, JsonValue]) -> None:
    dialect = schema.get("$schema")
    form = specification_with(dialect, DRAFT202012) if isinstance(dialect, str) else DRAFT202012
    registry: SchemaRegistry = Registry()
    resolver = registry.with_resource("", form.create_resource(dict(schema))).resolver()
    parts: list[JsonValue] = [dict(schema)]
    inner = False
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += part.values()
            inner = inner or "$id" in part  # then the caller must locate it
            if isinstance(pattern := part.get("pattern"), str):
                expression(pattern)
            if isinstance(named := part.get("patternProperties"), dict):
                _ = [expression(pattern) for pattern in named]
            ref = part.get("$ref")
            if isinstance(ref, str) and not (inner and ref.startswith("#")):
                try:
                    resolver.lookup(ref)
                except Unresolvable:
                    raise ValueError(f"the schema refers to {ref!r:.200}, which is not in it") from None


@functools.lru_cache(maxsize=16)
def _bounded_validator(kind: type[Validator]) -> type[_Validator]:
    rules = cast("Mapping[str, Rule]", kind.VALIDATORS)  # pyright: ignore[reportAttributeAccessIssue]
    own: dict[str, Rule] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
        "uniqueItems": _unique,
    }
    own |= {name: _unevaluated(rule) for name, rule in rules.items() if name.startswith("unevaluated")}
    changed = {name: _with_step_limit(own.get(name, rule)) for name, rule in rules.items()}
    made = cast("Callable[[object, object], type[_Validator]]", extend)(kind, changed)
    # For a part with `$schema`, the library's own method uses a class with uncounted, non-linear rules.
    fields = [
        (field.name, field.alias) for field in attrs.fields(cast("type[attrs.AttrsInstance]", made)) if field.init
    ]

    def evolve(validator: _Validator, **changes: object) -> _Validator:
        for name, alias in fields:
            if alias is not None and alias not in changes:
                changes[alias] = getattr(validator, name)
        return cast("Callable[..., _Validator]", made)(**changes)

    made.evolve = evolve
    return made


def _with_step_limit(rule: Rule) -> Rule:
    def counted(
        validator: _Validator, rule_value: object, value: object, schema: Mapping[str, object]
    ) -> Iterator[ValidationError]:
        validator.format_checker.spend(
            1 + len(rule_value) // 8 if isinstance(rule_value, Sized) and not isinstance(rule_value, str) else 1
        )
        return rule(validator, rule_value, value, schema)

    return counted


def _matches(validator: _Validator, pattern: str, text: str) -> bool:
    validator.format_checker.spend()
    return expression(pattern).search(text) is not None


def _pattern(
    validator: _Validator, pattern: object, value: object, _: Mapping[str, object]
) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _matches(validator, str(pattern), value):
        yield ValidationError(f"{value[:200]!r} does not match {pattern!r}")


def _pattern_properties(
    validator: _Validator, patterns: object, value: object, _: Mapping[str, object]
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        for pattern, inner in cast("dict[str, object]", patterns).items():
            for name, field in fields.items():
                if _matches(validator, pattern, name):
                    yield from validator.descend(field, inner, path=name, schema_path=pattern)


def _additional(
    validator: _Validator, allowed: object, value: object, schema: Mapping[str, object]
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    known, patterns = schema.get("properties", {}), cast("dict[str, object]", schema.get("patternProperties", {}))
    fields = cast("dict[str, object]", value)
    more = [name for name in fields if name not in cast("dict[str, object]", known)]
    more = [name for name in more if not any(_matches(validator, pattern, name) for pattern in patterns)]
    if isinstance(allowed, dict):
        for name in more:
            yield from validator.descend(fields[name], cast("object", allowed), path=name)
    elif not allowed and more:
        listed = ", ".join(map(repr, sorted(more)[:20]))
        yield ValidationError(f"Additional properties are not allowed ({listed} were unexpected)")


def _unique(_: _Validator, unique: object, value: object, __: Mapping[str, object]) -> Iterator[ValidationError]:
    if not unique or not isinstance(value, list):
        return
    seen: set[str] = set()
    for item in cast("list[object]", value):
        key = _key(item)
        if key in seen:
            yield ValidationError("it has the same item twice")
            return
        seen.add(key)


def _key(value: object) -> str:
    """Return a key that is equal for values equal in JSON: 1 and 1.0, but not 1 and true."""
    match value:
        case dict():
            fields = cast("dict[str, object]", value)
            return "{" + ",".join(f"{name!r}:{_key(fields[name])}" for name in sorted(fields)) + "}"
        case list():
            return "[" + ",".join(map(_key, cast("list[object]", value))) + "]"
        case float() if value.is_integer():
            return repr(int(value))
        case _:
            return repr(value)


def _unevaluated(rule: Rule) -> Rule:
    def unevaluated(
        validator: _Validator, rule_value: object, value: object, schema: Mapping[str, object]
    ) -> Iterator[ValidationError]:
        # The library itself evaluates all referenced schemas without counting, and with Python's expressions.
        if _reaches_far(schema):
            raise ValueError("`unevaluatedProperties` and `unevaluatedItems` go with neither `$ref` nor "
                             "`patternProperties` here: write `additionalProperties`")  # fmt: skip
        validator.format_checker.spend(100)
        yield from rule(validator, rule_value, value, schema)

    return unevaluated


def _reaches_far(schema: object) -> bool:
    if isinstance(schema, dict):
        fields = cast("dict[str, object]", schema)
        far = ("patternProperties", "$ref", "$dynamicRef", "$recursiveRef")
        return any(name in fields for name in far) or any(map(_reaches_far, fields.values()))
    return isinstance(schema, list) and any(map(_reaches_far, cast("list[object]", schema)))
