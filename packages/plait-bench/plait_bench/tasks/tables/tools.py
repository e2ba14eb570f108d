"""Tools that know the facts behind a question: slow look-ups that may fail, and quick arithmetic."""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.messages import did_you_mean
from plait.core.tools.tool import Tool

from .language import ATTRIBUTES, NAMES, RELATIONS, Entity, slots
from .plan import Facts, carry_out

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
