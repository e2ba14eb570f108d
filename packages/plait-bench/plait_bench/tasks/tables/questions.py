"""The tools that answer questions over tables, the facts that they look up, and the right answers."""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.messages import did_you_mean
from plait.core.tools.tool import Tool

from .language import (
    ATTRIBUTES,
    NAMES,
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
    slots,
)

Numeric = int | str
"""A number, or the slot of one."""
LATENCY = (0.02, 0.5)
"""Least and most seconds of a look-up."""


def names_in(part: object) -> Iterator[str]:
    """Yield the names in a question."""
    if isinstance(part, Entity):
        yield part.name
    elif isinstance(part, tuple):
        for inner in part:  # pyright: ignore[reportUnknownVariableType]
            yield from names_in(inner)  # pyright: ignore[reportUnknownArgumentType]
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        for field in dataclasses.fields(part):
            yield from names_in(getattr(part, field.name))


def made_tools(
    text: str, seed: int = 0, latency: tuple[float, float] = LATENCY, failing: float = 0.0
) -> list[Tool[..., object]]:
    """Return the tools for a question. Their arguments may be names, numbers or slots.

    Args:
        text: the question. seed: seed of the facts, as in the task `tables`. latency: minimum and maximum seconds of a
        look-up; field and name determine each latency. failing: share of look-ups that fail the first time and succeed
        the second time.
    """
    meaning = slots(text)[1]
    facts, tried = Facts(seed), Counter[tuple[str, str]]()

    def as_value(value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [as_value(item) for item in value]
        value = meaning.get(value, value) if isinstance(value, str) else value
        return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value

    def done(tool: str, *args: JsonValue) -> Any:
        try:
            return carry_out(tool, [as_value(arg) for arg in args], facts)
        except ValueError as error:
            raise ToolError(str(error)) from None

    async def lookup(field: str, name: str) -> int | str:
        """Look up a field of a row: a number, or the name of another row."""
        row = str(as_value(name))
        if field not in (*ATTRIBUTES, *RELATIONS):
            raise ToolError(f"there is no field {field!r}{did_you_mean(field, (*ATTRIBUTES, *RELATIONS))}")
        if row not in NAMES:
            raise ToolError(f"there is no row {row!r}{did_you_mean(row, NAMES)}")
        await asyncio.sleep(latency[0] + (latency[1] - latency[0]) * _share("latency", seed, field, row))
        tried[field, row] += 1
        if tried[field, row] == 1 and _share("failure", seed, field, row) < failing:
            raise ToolError("the table did not answer")
        return facts.lookup(field, row)

    def of_two(name: str, what: str) -> Callable[..., object]:
        def run(a: Numeric, b: Numeric) -> int:
            return done(name, a, b)

        run.__name__, run.__doc__ = name, f"Return {what}."
        if name in ("above", "below"):
            run.__annotations__["return"] = bool
        return run

    def choose(test: bool, first: Numeric, second: Numeric) -> int:
        """Return the first number if the test holds, else the second."""
        return done("choose", test, first, second)

    def most(names: list[str], values: list[Numeric]) -> str:
        """Return the name with the greatest value."""
        return done("most", list(names), list(values))

    def least(names: list[str], values: list[Numeric]) -> str:
        """Return the name with the least value."""
        return done("least", list(names), list(values))

    def total(values: list[Numeric]) -> int:
        """Return the sum of the values."""
        return done("total", list(values))

    def count_above(values: list[Numeric], limit: Numeric) -> int:
        """Count the values above the limit."""
        return done("count_above", list(values), limit)

    quick: list[Callable[..., object]] = [of_two(name, what) for name, (_, what) in _OF_TWO.items()]
    quick += [choose, most, least, total, count_above]
    made: list[Tool[..., object]] = [Tool(lookup)]
    return made + [Tool(fn) for fn in quick]


def _share(*of: object) -> float:
    """Return a number 0..1, fixed by what it is of."""
    return zlib.crc32("/".join(map(str, of)).encode()) % 10_007 / 10_007


_OF_TWO: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add": (operator.add, "a + b"),
    "subtract": (operator.sub, "a - b"),
    "multiply": (operator.mul, "a * b"),
    "larger": (max, "the larger number"),
    "smaller": (min, "the smaller number"),
    "above": (operator.gt, "whether a > b"),
    "below": (operator.lt, "whether a < b"),
}
"""The tools of two numbers, and what they return."""
PARAMETERS: dict[str, tuple[str, ...]] = {
    "lookup": ("field", "name"),
    **dict.fromkeys(_OF_TWO, ("a", "b")),
    "choose": ("test", "first", "second"),
    "most": ("names", "values"),
    "least": ("names", "values"),
    "total": ("values",),
    "count_above": ("values", "limit"),
}
"""The tools and their parameters, in order."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Tables of invented facts, determined by a seed: every field of any name has a value."""

    seed: int = 0

    def lookup(self, field: str, name: str) -> int | str:
        """Return a number 1..999, or for a relation a name."""
        mixed = zlib.crc32(f"{self.seed}/{field}/{name}".encode()) // 7
        return NAMES[mixed % len(NAMES)] if field in RELATIONS else 1 + mixed % 999


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
        case _, [one, other] if tool in _OF_TWO:
            return _OF_TWO[tool][0](_number(one), _number(other))
        case _:
            raise ValueError(f"the tool {tool!r} takes {', '.join(PARAMETERS.get(tool, ()))}, not {list(args)}")


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
