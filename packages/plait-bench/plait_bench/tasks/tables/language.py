"""The closed language of questions over tables: syntax tree, writer and parser.

    what is the sum of Ardan's owner's age and 31?
    which of Ardan, Brefik and Corlom's twin has the most income?
    if Ardan's age is above 40 then Ardan's debt else Brefik's budget?

Every construct has one place for each part, so a question is unambiguous and parsed without lookahead. `the age of the
owner of Ardan` is parsed as `Ardan's owner's age`, the written form, which has the order of the calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plait.core.errors import TaskError

ATTRIBUTES = (
    *("age", "area", "budget", "debt", "depth", "distance", "height", "income", "length", "population", "speed"),
    *("stock", "tax", "volume", "weight", "width"),
)
"""Columns of numbers."""
RELATIONS = ("advisor", "agent", "capital", "landlord", "mentor", "neighbour", "owner", "twin")
"""Columns of names."""
OPERATIONS = {"sum": "add", "difference": "subtract", "product": "multiply", "larger": "larger", "smaller": "smaller"}
"""What the language calls an operation, and the tool that does it."""
LEADS = ("what is", "find", "tell me")
"""Ways to ask for a value."""
_FIRST = ("Ar", "Bre", "Cor", "Dal", "Eri", "Fen", "Gor", "Hel")
_SECOND = ("dan", "fik", "lom", "mer", "nos", "pet", "rus", "vik")
NAMES = tuple(first + second for first in _FIRST for second in _SECOND)
"""The rows of the tables."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A row: by name, or through relations (outermost first): `Ardan's twin's owner`."""

    name: str
    relations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A number in the question, as it is written there."""

    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A number in a table."""

    attribute: str
    entity: Entity


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on two values."""

    name: str
    left: Value
    right: Value


Value = Number | Field | Operation


@dataclass(frozen=True, slots=True)
class Find:
    """`what is VALUE?`"""

    value: Value
    lead: str = LEADS[0]


@dataclass(frozen=True, slots=True)
class Who:
    """`who is ENTITY?`"""

    entity: Entity


@dataclass(frozen=True, slots=True)
class Is:
    """`is VALUE above VALUE?`, or `below`."""

    test: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Which:
    """`which of A, B and C has the most ATTRIBUTE?`, or `the least`."""

    extreme: str
    attribute: str
    entities: tuple[Entity, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """`what is the total ATTRIBUTE of A, B and C?`"""

    attribute: str
    entities: tuple[Entity, ...]


@dataclass(frozen=True, slots=True)
class CountQuestion:
    """`how many of A, B and C have ATTRIBUTE above VALUE?`"""

    attribute: str
    entities: tuple[Entity, ...]
    limit: Value


@dataclass(frozen=True, slots=True)
class If:
    """`if VALUE is above VALUE then VALUE else VALUE?`"""

    condition: Is
    then: Value
    otherwise: Value


Question = Find | Who | Is | Which | Total | CountQuestion | If


# -- writing -------------------------------------------------------------------------------------------------------


def words(part: Question | Value | Entity) -> str:
    """Return a question, or a part of one, as text."""
    match part:
        case Entity(name, relations):
            return name + "".join(f"'s {relation}" for relation in reversed(relations))
        case Number(text):
            return text
        case Field(attribute, entity):
            return f"{words(entity)}'s {attribute}"
        case Operation(name, left, right):
            return f"the {name} of {words(left)} and {words(right)}"
        case Find(value, lead):
            return f"{lead} {words(value)}?"
        case Who(entity):
            return f"who is {words(entity)}?"
        case Is(test, left, right):
            return f"is {words(left)} {test} {words(right)}?"
        case Which(extreme, attribute, entities):
            return f"which of {_listed(entities)} has the {extreme} {attribute}?"
        case Total(attribute, entities):
            return f"what is the total {attribute} of {_listed(entities)}?"
        case CountQuestion(attribute, entities, limit):
            return f"how many of {_listed(entities)} have {attribute} above {words(limit)}?"
        case If(Is(test, left, right), then, otherwise):
            return f"if {words(left)} is {test} {words(right)} then {words(then)} else {words(otherwise)}?"


def _listed(entities: Sequence[Entity]) -> str:
    *first, last = map(words, entities)
    return f"{', '.join(first)} and {last}" if first else last


# -- reading -------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z]+[0-9]*|[0-9]+|'s\b|[,?]|\S")
_NAME = re.compile(r"[A-Z][a-z]+|s[0-9]")
_NUMBER = re.compile(r"[0-9]{1,9}|n[0-9]")
_REPLACED = re.compile(r"\b(?:[A-Z][a-z]+|[0-9]{1,9})\b")
_MOST_CHARS = 2000
_DEEPEST = 40
EXAMPLE = "write for example: what is the sum of Ardan's owner's age and 31?"


class _Words:
    """The words of a question, taken from the left."""

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARS:
            raise TaskError(f"the question has {len(text)} characters, more than {_MOST_CHARS}; {EXAMPLE}")
        self.words = _WORD.findall(text.strip())
        if self.words and self.words[0][1:].islower() and not self.words[0].islower():
            self.words[0] = self.words[0].lower()  # the capital of a sentence
        if self.words and self.words[-1] in ".?":
            self.words.pop()
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, *wanted: str) -> str:
        """Take one of the words wanted."""
        word = self.peek()
        if word not in wanted:
            shown = repr(word) if word else "the end"
            raise TaskError(f"the question has {shown} where {' or '.join(map(repr, wanted[:6]))} belongs; {EXAMPLE}")
        self.at += 1
        return word

    def all(self, text: str) -> None:
        for word in text.split():
            self.take(word)

    def got(self, text: str) -> bool:
        """Take these words if they are next."""
        wanted = text.split()
        if self.words[self.at : self.at + len(wanted)] != wanted:
            return False
        self.at += len(wanted)
        return True

    def next_is(self, word: str, then: Collection[str]) -> bool:
        """Whether this word is next, and behind it one of those."""
        return self.words[self.at : self.at + 1] == [word] and "".join(self.words[self.at + 1 : self.at + 2]) in then

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        word = self.peek()
        if not pattern.fullmatch(word):
            raise TaskError(f"the question has {word or 'the end'!r} where {what} belongs; {EXAMPLE}")
        self.at += 1
        return word


def read(text: str) -> Question:
    """Parse a question, with names or with slots in it. Raises `TaskError` for a text outside the language."""
    source = _Words(text)
    question = _question(source)
    if source.peek():
        raise TaskError(f"the question continues with {source.peek()!r} after its end; {EXAMPLE}")
    return question


def _question(source: _Words) -> Question:
    if source.got("what is the total"):
        attribute = source.take(*ATTRIBUTES)
        source.take("of")
        return Total(attribute, _entities(source))
    for lead in LEADS:
        if source.got(lead):
            return Find(_value(source), lead)
    match source.take("who", "is", "which", "how", "if", *(lead.split()[0] for lead in LEADS)):
        case "who":
            source.take("is")
            return Who(_entity(source))
        case "is":
            left = _value(source)
            return Is(source.take("above", "below"), left, _value(source))
        case "which":
            source.take("of")
            entities = _entities(source)
            source.all("has the")
            return Which(source.take("most", "least"), source.take(*ATTRIBUTES), entities)
        case "how":
            source.all("many of")
            entities = _entities(source)
            source.take("have")
            attribute = source.take(*ATTRIBUTES)
            source.take("above")
            return CountQuestion(attribute, entities, _value(source))
        case _:
            left = _value(source)
            source.take("is")
            condition = Is(source.take("above", "below"), left, _value(source))
            source.take("then")
            then = _value(source)
            source.take("else")
            return If(condition, then, _value(source))


def _entities(source: _Words) -> tuple[Entity, ...]:
    entities = [_entity(source)]
    while source.got(",") or source.got("and"):
        entities.append(_entity(source))
    return tuple(entities)


def _entity(source: _Words) -> Entity:
    relations: list[str] = []
    while source.got("the"):
        relations.append(source.take(*RELATIONS))
        source.take("of")
    name = source.matching(_NAME, "a name")
    while source.next_is("'s", RELATIONS):
        source.take("'s")
        relations.insert(0, source.take(*RELATIONS))
    return Entity(name, tuple(relations))


def _value(source: _Words) -> Value:
    if _NAME.fullmatch(source.peek()) or source.next_is("the", RELATIONS):
        entity = _entity(source)
        source.take("'s")
        return Field(source.take(*ATTRIBUTES), entity)
    if not source.got("the"):
        return Number(source.matching(_NUMBER, "a number, a name or 'the'"))
    word = source.take(*ATTRIBUTES, *OPERATIONS)
    source.take("of")
    if word in ATTRIBUTES:
        return Field(word, _entity(source))
    source.depth += 1
    if source.depth > _DEEPEST:
        raise TaskError(f"the question has more than {_DEEPEST} operations; {EXAMPLE}")
    left = _value(source)
    source.take("and")
    return Operation(word, left, _value(source))


def slots(text: str) -> tuple[str, dict[str, str]]:
    """Return a question with its names and numbers replaced by slots, and the meaning of each slot.

    Names become `s0`, `s1`, … and numbers `n0`, `n1`, … by first appearance (delexicalisation): a planning model need
    not know the names. Raises `TaskError` for more than ten of a kind.

    >>> slots("is the age of Ardan above 40?")
    ("is s0's age above n0?", {'s0': 'Ardan', 'n0': '40'})
    """
    slot_of: dict[str, str] = {}
    counts = {"s": 0, "n": 0}

    def replaced(match: re.Match[str]) -> str:
        word = match[0]
        if word not in slot_of:
            kind = "n" if word.isdigit() else "s"
            if counts[kind] == 10:
                raise TaskError(f"the question has more than ten {'numbers' if kind == 'n' else 'names'}")
            slot_of[word] = f"{kind}{counts[kind]}"
            counts[kind] += 1
        return slot_of[word]

    out = _REPLACED.sub(replaced, words(read(text)))
    return out, {slot: word for word, slot in slot_of.items()}
