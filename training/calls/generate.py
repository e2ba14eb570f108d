"""Questions that want one to five calls, with the functions that may be called and the plan that is right.

Functions and their words come from `catalogue.txt`. Nothing of a benchmark is in it.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from plait.core.tools.tool import ToolSpec

from .values import draw as value_of, schema, written

__all__ = ["Example", "Function", "catalogue", "draw", "plan_of"]

HELD = 9
"""Every ninth function is never trained on: what is drawn of those says how well the form carries over."""
_SLOT = re.compile(r"\{(\w+)\}")
_ASK = ("Find", "Tell me", "I need", "Can you get", "Could you look up", "Give me", "I would like to know",
        "Please find", "Help me with", "Show me")  # fmt: skip
_NEXT = ("Also,", "And then", "In addition,", "After that,", "Moreover,", "Besides,")
_STORY = (
    "I am working on a project.", "I am planning something for my friends.", "I have homework to hand in tomorrow.",
    "My boss asked me about this.", "I am writing a report.", "Here is what I want to know.", "I have a few questions.",
    "We are comparing some options.", "I was reading an article this morning.", "Let us do this step by step.",
)  # fmt: skip
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}


@dataclass(frozen=True)
class Argument:
    """An argument of a function."""

    names: tuple[str, ...]
    kind: str
    about: str
    optional: bool


@dataclass(frozen=True)
class Function:
    """A block of the catalogue."""

    domain: str
    name: str
    about: str
    arguments: tuple[Argument, ...]
    what: str
    which: str
    extra: str
    verb: str

    @property
    def needed(self) -> list[Argument]:
        """Its arguments that a call must have."""
        return [argument for argument in self.arguments if not argument.optional]


@dataclass(frozen=True)
class Example:
    """A question."""

    tools: tuple[ToolSpec, ...]
    question: str
    plan: str
    count: int


@cache
def catalogue() -> tuple[Function, ...]:
    """Return the functions of `catalogue.txt`."""
    text = Path(__file__).with_name("catalogue.txt").read_text("utf-8")
    blocks = [block for block in text.split("\n\n") if block.strip() and not block.startswith("#")]
    return tuple(_function(block.strip().splitlines()) for block in blocks)


def _function(lines: list[str]) -> Function:
    head, about = lines[0].split(": ", 1)
    domain, name = head.split(" ")
    arguments: list[Argument] = []
    said, verb = ["", "", ""], ""
    for line in lines[1:]:
        mark, rest = line[:2], line[2:]
        if mark == "= ":
            said = [part.strip() for part in rest.split(" / ")] + ["", ""]
        elif mark == "~ ":
            verb = rest.strip()
        elif mark == "  ":
            names, kind, told = _fields(rest)
            arguments.append(Argument(tuple(names.rstrip("?").split("|")), kind, told, names.endswith("?")))
    return Function(domain, name, about, tuple(arguments), said[0], said[1], said[2], verb)


def _fields(text: str) -> tuple[str, str, str]:
    names, rest = text.split(" ", 1)
    end = rest.index(")") + 1 if rest.startswith("choice(") else rest.index(" ")
    return names, rest[:end], rest[end:].strip()


def draw(rng: random.Random, held: bool = False) -> Example:
    """Return a question; `held`: of functions that are never trained on."""
    functions = [each for place, each in enumerate(catalogue()) if (place % HELD == HELD - 1) == held]
    kind = rng.random()
    used = 1 if kind < 0.6 else rng.choice((2, 2, 3))
    chosen = rng.sample(functions, used)
    counts = (1,) if kind < 0.2 else (2, 2, 2, 3, 3, 4, 5) if used == 1 else (1, 1, 2)
    others = [] if used == 1 and rng.random() < 0.7 else rng.sample([e for e in functions if e not in chosen], 1)
    named = {function: _Named(function, rng) for function in (*chosen, *others)}
    parts, calls = [], []
    for function in chosen:
        sentences, made = _asked(function, named[function], rng.choice(counts), rng)
        parts.append(sentences)
        calls += made
    listed = list(named.values())
    rng.shuffle(listed)
    return Example(tuple(each.spec for each in listed), _question(parts, len(calls), rng), plan_of(calls), len(calls))


def plan_of(calls: list[tuple[str, dict[str, object]]]) -> str:
    """Return calls as a plan of `llmcompiler`."""
    lines = []
    for number, (name, arguments) in enumerate(calls, 1):
        shown = ", ".join(f"{key}={_value(value)}" for key, value in arguments.items())
        lines.append(f"{number}. {name}({shown})\n")
    return "".join(lines) + f"{len(calls) + 1}. join()<END_OF_PLAN>"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


class _Named:
    """A function under one of the names that it may have."""

    def __init__(self, function: Function, rng: random.Random) -> None:
        plain, domain = function.name, function.domain
        verb = rng.choice(("get", "find", "calculate", "fetch"))
        camel = "".join(word.title() if place else word for place, word in enumerate(f"{verb}_{plain}".split("_")))
        styles = (plain, f"{domain}.{plain}", f"{verb}_{plain}", f"{domain}_{plain}", f"{domain}.{verb}_{plain}", camel)
        self.name = rng.choice(styles)
        self.of = {argument.names[0]: rng.choice(argument.names) for argument in function.arguments}
        fields: dict[str, object] = {}
        for argument in function.arguments:
            fields[self.of[argument.names[0]]] = schema(argument.kind) | {"description": argument.about}
        must = [self.of[argument.names[0]] for argument in function.needed]
        parameters: object = {"type": "object", "properties": fields, "required": must}
        self.spec = ToolSpec.model_validate(
            {"name": self.name, "description": function.about, "parameters": parameters}
        )

    def call(self, values: dict[str, object]) -> tuple[str, dict[str, object]]:
        """Return a call, its arguments as a plan has them: those that are needed first."""
        return self.name, {name: values[own] for own, name in self.of.items() if own in values}


def _asked(
    function: Function, named: _Named, count: int, rng: random.Random
) -> tuple[list[str], list[tuple[str, dict[str, object]]]]:
    """Return pieces of sentences that ask for `count` calls of a function, and the calls."""
    rows = [{a.names[0]: value_of(a.kind, rng) for a in function.needed} for _ in range(count)]
    free = [a.names[0] for a in function.needed if a.kind not in ("ints", "pair", "bool") and "choice" not in a.kind]
    way = rng.choice(("each", "tails", "one varies", "one varies")) if count > 1 else "each"
    if way == "one varies" and free:
        varied = rng.choice(free)
        rows = [rows[0] | {varied: row[varied]} for row in rows]
    rows = list({json.dumps(row): row for row in rows}.values())
    added = _optional(function, rng)
    extra = f" {_filled(function.extra, added)}" if added else ""
    if way == "one varies" and free and len(rows) > 1:
        shown = {key: written(value) for key, value in rows[0].items()}
        shown[varied] = _listed([written(row[varied]) for row in rows], rng)
        pieces = [f"{function.what} {function.which}".format(**shown) + extra]
    else:
        tails = [_filled(function.which, row) for row in rows]
        if way == "tails" and len(rows) > 1:
            another = rng.choice(("", "", "another one ", "one "))
            tail = _listed([tails[0], *(another + tail for tail in tails[1:])], rng)
            pieces = [f"{_filled(function.what, rows[0])} {tail}{extra}"]
        else:
            pieces = [f"{_filled(function.what, row)} {tail}{extra}" for row, tail in zip(rows, tails, strict=True)]
    verb = function.verb and f"{function.verb} "
    return [verb + piece for piece in pieces], [named.call(row | added) for row in rows]


def _optional(function: Function, rng: random.Random) -> dict[str, object]:
    slots = _SLOT.findall(function.extra)
    chosen = [a for a in function.arguments if a.optional and a.names[0] in slots]
    return {a.names[0]: value_of(a.kind, rng) for a in chosen} if chosen and rng.random() < 0.3 else {}


def _filled(text: str, values: dict[str, object]) -> str:
    return text.format(**{key: written(value) for key, value in values.items()})


def _listed(items: list[str], rng: random.Random) -> str:
    if len(items) == 1:
        return items[0]
    way = rng.random()
    if way < 0.15:
        return " and ".join(items)
    if way < 0.3:
        return ", then ".join(items)
    comma = "," if way < 0.6 and len(items) > 2 else ""
    return f"{', '.join(items[:-1])}{comma} and {items[-1]}"


def _question(parts: list[list[str]], count: int, rng: random.Random) -> str:
    """Return the pieces of all functions, which want `count` calls, as a question."""
    pieces = [piece for part in parts for piece in part]
    if len(pieces) > 1 and rng.random() < 0.25:  # in one sentence
        text = f"{_opened(pieces[0], rng)}{_listed(['', *pieces[1:]], rng)}."
    else:
        sentences = []
        for place, piece in enumerate(pieces):
            opened = _opened(piece, rng)
            lead = f"{rng.choice(_NEXT)} " if place and rng.random() < 0.5 else ""
            opened = opened[0].lower() + opened[1:] if lead and not opened.startswith("I ") else opened
            sentences.append(f"{lead}{opened}{'?' if 'an you' in opened or 'ould you' in opened else '.'}")
        text = " ".join(sentences)
    story = rng.random()
    if story < 0.25:
        text = f"{rng.choice(_STORY)} {text}"
    elif story < 0.35 and count in _NUMBERS:
        text = f"I want to know {_NUMBERS[count]} things. {text}"
    return text


def _opened(piece: str, rng: random.Random) -> str:
    verb = next((each.verb for each in catalogue() if each.verb and piece.startswith(f"{each.verb} ")), "")
    if verb:
        return rng.choice((piece[0].upper() + piece[1:], f"Please {piece}", f"Can you {piece}"))
    return f"{rng.choice(_ASK)} {piece}"
