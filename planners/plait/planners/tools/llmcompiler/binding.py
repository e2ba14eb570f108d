"""Bind a model's task to a call: parameter names replace positions, steps replace references.

A reference to a missing task or a call that does not fit its tool's schema is an error and is not run. The machine
fills in the tool results later, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from plait.core.messages import did_you_mean
from plait.core.tools.tool import ToolSpec

from .arguments import Argument
from .parser import PlanTask

# A dollar sign with a number is a reference, unless it reads as money: `$1.50`, `$1,000`, `$2M`. `${1}` never does.
# Two dollar signs stand for one literal dollar sign, as in `awk '$$2 > 5'`.
_REFERENCE = re.compile(
    r"\$(?:(\$)(?=\{?[0-9])|\{([0-9]{1,6})(?:\.output)?\}|([0-9]{1,6})(?![0-9A-Za-z_]|\.[0-9]|,[0-9]{3}(?![0-9])))(?:\.output\b)?"
)
_NAMED = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*+)\}?+")
_SPECIAL = ("$ref", "$text", "$literal")


@dataclass(slots=True)
class Binding:
    """A task's call: arguments for `ToolCall`, the steps they refer to, and the error of an invalid call."""

    args: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    needs: list[str] = field(default_factory=list[str])
    blocked: list[int] = field(default_factory=list[int])
    """Tasks that the call refers to but that are not run."""
    errors: list[str] = field(default_factory=list[str])
    repairs: list[str] = field(default_factory=list[str])


def bind(
    task: PlanTask, known: Mapping[int, str], spec: ToolSpec | None, results: Mapping[str, int] | None = None
) -> Binding:
    """Return a task's call. `known`: the steps that it may refer to, by task number; an empty name marks a task that is
    not run. `results`: tasks by the names that the plan gave to their results.

    Positional arguments get the parameters' names in the schema's order; those of a tool without a schema, or without a
    `spec` (unknown), are named `arg0`, `arg1`, … A string parameter gets a string: the source text of a number, and the
    text of a reference's value.
    """
    bound = Binding()
    schema = _properties(spec.parameters) if spec else {}
    given = [item for item in task.arguments.items if item.key is None]
    keyed = {item.key: item for item in task.arguments.items if item.key is not None}
    bare = any(item.bare and item.value not in (results or {}) for item in given)
    if bare and task.arguments.bare and not _has_several_arguments(task, spec, len(given)):
        raw = task.arguments.raw
        given = [Argument(None, raw, raw)]
        bound.repairs.append("text without quotes taken as one argument")
    names = [name for name in schema if name not in keyed] if schema else [f"arg{i}" for i in range(len(given))]
    if len(given) > len(names):
        takes = ", ".join(schema) or "no arguments"
        bound.errors.append(f"{task.tool} got {len(task.arguments.items)} arguments (it takes {takes})")
    pairs = [*zip(names, given, strict=False), *keyed.items()]
    linker = _Linker(known, task.id, bound, results or {})
    for name, item in pairs:
        assert name is not None
        kind = schema.get(name, {})
        value: JsonValue = item.value
        if item.bare and isinstance(value, str) and value in linker.names:
            value = f"${{{linker.names[value]}}}"
        if kind.get("type") == "string" and not isinstance(value, str | list | dict) and value is not None:
            value = item.raw
        bound.args[name] = linker.link(value, kind)
    if schema or _is_closed(spec):
        _check(task, spec, schema, bound)
    bound.needs = list(dict.fromkeys(bound.needs))
    return bound


def _has_several_arguments(task: PlanTask, spec: ToolSpec | None, given: int) -> bool:
    """Return whether text with commas but without quotes is several arguments: the tool requires that many."""
    if spec is None:
        return False
    required = spec.parameters.get("required")
    return isinstance(required, list) and 2 <= given <= len(required)


def _properties(parameters: Mapping[str, JsonValue]) -> dict[str, dict[str, JsonValue]]:
    properties = parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: kind if isinstance(kind, dict) else {} for name, kind in properties.items()}


def _is_closed(spec: ToolSpec | None) -> bool:
    return spec is not None and spec.parameters.get("additionalProperties") is False


def _check(task: PlanTask, spec: ToolSpec | None, schema: Mapping[str, object], bound: Binding) -> None:
    assert spec is not None
    for name in bound.args:
        if name not in schema and spec.parameters.get("additionalProperties") in (None, False):
            takes = ", ".join(schema) or "no arguments"
            bound.errors.append(f"{task.tool} has no argument {name!r}{did_you_mean(name, schema)} (it takes {takes})")
    required = spec.parameters.get("required")
    missing = [str(name) for name in required if name not in bound.args] if isinstance(required, list) else []
    if missing:
        bound.errors.append(f"{task.tool} lacks {', '.join(map(repr, missing))}")


class _Linker:
    """Replaces `$1`, `${1}` and `$1.output` everywhere in a task's arguments by references to steps."""

    def __init__(self, known: Mapping[int, str], own: int, bound: Binding, names: Mapping[str, int]) -> None:
        self.known, self.own, self.bound, self.names = known, own, bound, names

    def link(self, value: JsonValue, kind: Mapping[str, JsonValue]) -> JsonValue:
        match value:
            case str():
                return self._text(value, kind.get("type") == "string") if "$" in value else value
            case list():
                items = kind.get("items")
                of = cast("Mapping[str, JsonValue]", items) if isinstance(items, dict) else {}
                return [self.link(item, of) for item in value]
            case dict():
                if len(value) == 1 and next(iter(value)) in _SPECIAL:
                    return {"$literal": value}  # The model's own text must not be read as a reference.
                return {key: self.link(item, {}) for key, item in value.items()}
            case _:
                return value

    def _number(self, reference: re.Match[str]) -> str:
        number = self.names.get(reference[1])
        return reference[0] if number is None else f"${{{number}}}"

    def _text(self, text: str, as_text: bool) -> JsonValue:
        if self.names:
            text = _NAMED.sub(self._number, text)
        pieces: list[JsonValue] = []
        words, at = "", 0
        for reference in _REFERENCE.finditer(text):
            if reference[1]:
                words += text[at : reference.start()] + reference[1]
                at = reference.end()
                continue
            number = int(reference[2] or reference[3])
            step = self.known.get(number)
            if step is None:
                # `$15` inside a text may be money, unless a task with this number should come before
                if reference[2] or reference[0] == text.strip() or number < self.own:
                    what = "itself" if number == self.own else "no earlier task"
                    self.bound.errors.append(f"{reference[0]} refers to {what}")
                continue
            if not step:
                self.bound.blocked.append(number)
                continue
            self.bound.needs.append(step)
            words += text[at : reference.start()]
            pieces += [words] if words else []
            pieces.append({"$ref": step})
            words, at = "", reference.end()
        words += text[at:]
        if not pieces:
            return words
        pieces += [words] if words else []
        if len(pieces) == 1 and not as_text:
            return pieces[0]
        return {"$text": pieces}
