"""A question's rule-based plan (its calls in order), the tools' functions, and the answer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from .language import (
    NAMES,
    OPERATIONS,
    RELATIONS,
    CountQuestion,
    Entity,
    Field,
    Find,
    If,
    Is,
    Number,
    Operation,
    Question,
    Total,
    Value,
    Which,
    Who,
)

PARAMETERS: dict[str, tuple[str, ...]] = {
    "lookup": ("field", "name"),
    "add": ("a", "b"),
    "subtract": ("a", "b"),
    "multiply": ("a", "b"),
    "larger": ("a", "b"),
    "smaller": ("a", "b"),
    "above": ("a", "b"),
    "below": ("a", "b"),
    "choose": ("test", "first", "second"),
    "most": ("names", "values"),
    "least": ("names", "values"),
    "total": ("values",),
    "count_above": ("values", "limit"),
}
"""The tools and their parameters, in order."""


@dataclass(frozen=True, slots=True)
class CallRef:
    """The result of an earlier call: its place, from 0."""

    index: int


Argument = str | CallRef | tuple["str | CallRef", ...]
"""A name, field or number of the question, an earlier result, or a list of these."""


@dataclass(frozen=True, slots=True)
class TableCall:
    """One call."""

    tool: str
    args: tuple[Argument, ...]

    def needs(self) -> list[int]:
        """Return the places of the calls whose results it takes."""
        flat = (part for arg in self.args for part in (arg if isinstance(arg, tuple) else (arg,)))
        return [part.index for part in flat if isinstance(part, CallRef)]


@dataclass(frozen=True, slots=True)
class Facts:
    """Tables of invented facts, determined by a seed: every field of any name has a value."""

    seed: int = 0

    def lookup(self, field: str, name: str) -> int | str:
        """Return a number 1..999, or for a relation a name."""
        mixed = zlib.crc32(f"{self.seed}/{field}/{name}".encode()) // 7
        return NAMES[mixed % len(NAMES)] if field in RELATIONS else 1 + mixed % 999


def calls(question: Question) -> list[TableCall]:
    """Return the calls that answer a question, each after its needs, in the question's order. The last call gives the
    answer."""
    out: list[TableCall] = []

    def add_call(tool: str, *args: Argument) -> CallRef:
        out.append(TableCall(tool, args))
        return CallRef(len(out) - 1)

    def entity(whose: Entity) -> str | CallRef:
        at: str | CallRef = whose.name
        for relation in reversed(whose.relations):
            at = add_call("lookup", relation, at)
        return at

    def value(part: Value) -> str | CallRef:
        match part:
            case Number(text):
                return text
            case Field(attribute, of):
                return add_call("lookup", attribute, entity(of))
            case Operation(name, left, right):
                first = value(left)
                return add_call(OPERATIONS[name], first, value(right))

    def fan(attribute: str, entities: Sequence[Entity]) -> tuple[tuple[str | CallRef, ...], tuple[str | CallRef, ...]]:
        names: list[str | CallRef] = []
        values: list[str | CallRef] = []
        for owner in entities:
            names.append(entity(owner))
            values.append(add_call("lookup", attribute, names[-1]))
        return tuple(names), tuple(values)

    match question:
        case Find(wanted):
            value(wanted)
        case Who(who):
            entity(who)
        case Is(test, left, right):
            first = value(left)
            add_call(test, first, value(right))
        case Which(extreme, attribute, entities):
            add_call(extreme, *fan(attribute, entities))
        case Total(attribute, entities):
            add_call("total", fan(attribute, entities)[1])
        case CountQuestion(attribute, entities, limit):
            values = fan(attribute, entities)[1]
            add_call("count_above", values, value(limit))
        case If(Is(test, left, right), then, otherwise):
            first = value(left)
            condition = add_call(test, first, value(right))
            chosen = value(then)
            add_call("choose", condition, chosen, value(otherwise))
    return out


def carry_out(tool: str, args: Sequence[JsonValue], facts: Facts) -> JsonValue:
    """Return the result of a tool for its arguments. Raises `ValueError` for arguments of a wrong kind."""
    match tool, list(args):
        case "lookup", [str(field), str(name)]:
            return facts.lookup(field, name)
        case "choose", [bool(test), first, second]:
            return first if test else second
        case "most" | "least", [[*names], [*values]] if names and len(names) == len(values):
            numbers = [_number(value) for value in values]
            return names[numbers.index(max(numbers) if tool == "most" else min(numbers))]
        case "total", [[*values]]:
            return sum(_number(value) for value in values)
        case "count_above", [[*values], limit]:
            return sum(_number(value) > _number(limit) for value in values)
        case (("add" | "subtract" | "multiply" | "larger" | "smaller" | "above" | "below"), [one, other]):
            return _two(tool, _number(one), _number(other))
        case _:
            raise ValueError(f"the tool {tool!r} takes {', '.join(PARAMETERS.get(tool, ()))}, not {list(args)}")


def _two(tool: str, a: int, b: int) -> int | bool:
    match tool:
        case "add":
            return a + b
        case "subtract":
            return a - b
        case "multiply":
            return a * b
        case "larger":
            return max(a, b)
        case "smaller":
            return min(a, b)
        case "above":
            return a > b
        case _:
            return a < b


def _number(value: JsonValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no number")
    return value


def answer(question: Question, facts: Facts, stands_for: Mapping[str, str] | None = None) -> JsonValue:
    """Return the right answer. The answer is computed from the question, not from `calls`, so it can check the calls.
    `stands_for` maps the question's slots to their meaning."""
    meaning = stands_for or {}

    def entity(whose: Entity) -> str:
        at = meaning.get(whose.name, whose.name)
        for relation in reversed(whose.relations):
            at = str(facts.lookup(relation, at))
        return at

    def value(part: Value) -> int:
        match part:
            case Number(text):
                return int(meaning.get(text, text))
            case Field(attribute, of):
                return int(facts.lookup(attribute, entity(of)))
            case Operation("sum", left, right):
                return value(left) + value(right)
            case Operation("difference", left, right):
                return value(left) - value(right)
            case Operation("product", left, right):
                return value(left) * value(right)
            case Operation(name, left, right):
                both = sorted((value(left), value(right)))
                return both[1 if name == "larger" else 0]

    def holds(test: Is) -> bool:
        left, right = value(test.left), value(test.right)
        return left > right if test.test == "above" else left < right

    match question:
        case Find(wanted):
            return value(wanted)
        case Who(who):
            return entity(who)
        case Is():
            return holds(question)
        case Which(extreme, attribute, entities):
            sign = 1 if extreme == "most" else -1
            return entity(max(entities, key=lambda owner: sign * value(Field(attribute, owner))))
        case Total(attribute, entities):
            return sum(value(Field(attribute, entity)) for entity in entities)
        case CountQuestion(attribute, entities, limit):
            return sum(value(Field(attribute, entity)) > value(limit) for entity in entities)
        case If(condition, then, otherwise):
            return value(then) if holds(condition) else value(otherwise)
