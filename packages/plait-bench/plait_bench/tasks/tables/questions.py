"""Random questions of the language with a given number of calls, and their test split."""

from __future__ import annotations

import random
import re
import zlib

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
from .plan import calls

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
