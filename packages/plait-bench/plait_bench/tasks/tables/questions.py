"""Random questions of the language with a given number of calls, and their test split."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
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
    LEADS,
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
    slots,
    words,
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

    def add(a: Numeric, b: Numeric) -> int:
        """Return a + b."""
        return done("add", a, b)

    def subtract(a: Numeric, b: Numeric) -> int:
        """Return a - b."""
        return done("subtract", a, b)

    def multiply(a: Numeric, b: Numeric) -> int:
        """Return a * b."""
        return done("multiply", a, b)

    def larger(a: Numeric, b: Numeric) -> int:
        """Return the larger number."""
        return done("larger", a, b)

    def smaller(a: Numeric, b: Numeric) -> int:
        """Return the smaller number."""
        return done("smaller", a, b)

    def above(a: Numeric, b: Numeric) -> bool:
        """Return whether a > b."""
        return done("above", a, b)

    def below(a: Numeric, b: Numeric) -> bool:
        """Return whether a < b."""
        return done("below", a, b)

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

    quick: list[Callable[..., object]] = [add, subtract, multiply, larger, smaller, above, below, choose]
    quick += [most, least, total, count_above]
    made: list[Tool[..., object]] = [Tool(lookup)]
    return made + [Tool(fn) for fn in quick]


def _share(*of: object) -> float:
    """Return a number 0..1, fixed by what it is of."""
    return zlib.crc32("/".join(map(str, of)).encode()) % 10_007 / 10_007


MOST_CALLS = 8
_OWNED = re.compile(r"s[0-9](?:'s [a-z]+)+")
_KINDS = ("find", "find", "find", "who", "is", "which", "which", "total", "count", "if")


def is_test(text: str) -> bool:
    """Return whether a question belongs to the test split (one in ten), by its text with slots: training thus excludes
    test questions with other names and numbers too. `s0's owner's age` equals `the age of the owner of s0`."""
    return zlib.crc32(_OWNED.sub(_of, slots(text)[0]).encode()) % 10 == 0


def _of(match: re.Match[str]) -> str:
    name, *chain = match[0].split("'s ")
    return "".join(f"the {relation} of " for relation in reversed(chain)) + name


def draw(rng: random.Random, size: int | None = None, most: int = MOST_CALLS) -> Question:
    """Return a random question with `size` calls, by default 1..`most`."""
    while True:
        question = _draw(rng)
        takes = len(calls(question))
        if takes == size or (size is None and takes <= most):
            return question


def held_out(count: int, seed: int = 2024, sizes: tuple[int, int] = (1, MOST_CALLS)) -> list[str]:
    """Return distinct questions of the test split, sizes in turn."""
    rng = random.Random(seed)
    texts: dict[str, None] = {}
    span = sizes[1] - sizes[0] + 1
    while len(texts) < count:
        text = words(draw(rng, sizes[0] + len(texts) % span))
        if is_test(text):
            texts[text] = None
    return list(texts)


def _draw(rng: random.Random) -> Question:
    match rng.choice(_KINDS):
        case "find":
            return Find(_value(rng, rng.randint(0, 3), numbers=False), rng.choice(LEADS))
        case "who":
            return Who(_entity(rng, rng.randint(1, 3)))
        case "is":
            return _test(rng)
        case "which":
            return Which(rng.choice(("most", "least")), rng.choice(ATTRIBUTES), _entities(rng))
        case "total":
            return Total(rng.choice(ATTRIBUTES), _entities(rng))
        case "count":
            return CountQuestion(rng.choice(ATTRIBUTES), _entities(rng), _value(rng, 0))
        case _:
            return If(_test(rng), _value(rng, rng.randint(0, 1)), _value(rng, rng.randint(0, 1)))


def _test(rng: random.Random) -> Is:
    left = _value(rng, rng.randint(0, 1), numbers=False)
    return Is(rng.choice(("above", "below")), left, _value(rng, rng.randint(0, 1)))


def _value(rng: random.Random, depth: int, numbers: bool = True) -> Value:
    """A value with operations at most `depth` deep."""
    if depth:
        name = rng.choice(list(OPERATIONS))
        left = _value(rng, rng.randint(0, depth - 1), numbers=False)
        if name == "product":  # a small number keeps results short
            return Operation(name, left, Number(str(rng.randint(2, 20))))
        return Operation(name, left, _value(rng, rng.randint(0, depth - 1)))
    if numbers and rng.random() < 0.4:
        return Number(str(rng.randint(2, 999)))
    return Field(rng.choice(ATTRIBUTES), _entity(rng, rng.choice((0, 0, 0, 1, 1, 2))))


def _entity(rng: random.Random, relations: int) -> Entity:
    return Entity(rng.choice(NAMES), tuple(rng.choice(RELATIONS) for _ in range(relations)))


def _entities(rng: random.Random) -> tuple[Entity, ...]:
    entities: list[Entity] = []
    for _ in range(rng.randint(2, 5)):
        entity = _entity(rng, rng.choice((0, 0, 0, 1)))
        if entity not in entities:
            entities.append(entity)
    return tuple(entities) if len(entities) > 1 else _entities(rng)


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
