"""Random questions over tables with a given number of calls, their test split, and the calls that answer a question."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from plait_bench.tasks.tables.language import (
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
