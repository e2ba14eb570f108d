"""Programs of a code search: what came of them, inputs made from others, tests that a model wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from plait.core.flow import Trajectory
from plait.core.programs import Cell, has_returned
from plait.core.tools.calls import loads

Test = tuple[list[JsonValue], JsonValue]
"""Arguments, and the result that is wanted."""

_MOST = 1600
"""Characters of a trace that a model is shown: about 400 tokens."""


@dataclass(slots=True)
class Candidate:
    """A program, and what is known of it."""

    program: str
    key: str
    line: Trajectory
    weight: int = 1
    """How many samples wrote it."""
    passed: int = 0
    """Public cases that it passes."""
    cells: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """By input, as JSON."""

    def behaviour(self, inputs: Sequence[str]) -> str:
        """Return its outputs on the inputs as text: programs that do the same have the same."""
        return json.dumps([_kind(self.cells.get(key, ("none", None))) for key in inputs], sort_keys=True, default=str)


def _kind(cell: Cell) -> object:
    """Return the part of a cell that counts as behaviour: for an error, its class alone."""
    kind, value = cell
    return [kind, str(value).partition(":")[0]] if kind in ("error", "broken") else [kind, value]


def cluster_by_behaviour(pool: Sequence[Candidate], inputs: Sequence[str]) -> dict[str, list[Candidate]]:
    """Return programs by their behaviour on inputs (as JSON)."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in pool:
        groups.setdefault(candidate.behaviour(inputs), []).append(candidate)
    return groups


def count_samples(group: Sequence[Candidate]) -> int:
    """Count the samples that wrote the programs of a group."""
    return sum(candidate.weight for candidate in group)


def list_passed(candidate: Candidate, tests: Sequence[Test]) -> list[bool]:
    """Return for each test whether a program passes it."""
    return [has_returned(candidate.cells.get(json.dumps(args)), want) for args, want in tests]


def count_votes(candidate: Candidate, tests: Sequence[Test]) -> int:
    """Count the tests that a program passes."""
    return sum(list_passed(candidate, tests))


def mutate_inputs(args: Sequence[JsonValue]) -> list[list[JsonValue]]:
    """Return inputs like one that is known, each with one argument changed; they cost nothing."""
    inputs: list[list[JsonValue]] = []
    for at, value in enumerate(args):
        for other in _other_values(value):
            inputs.append([*args[:at], other, *args[at + 1 :]])
    return inputs


def _other_values(value: JsonValue) -> list[JsonValue]:
    match value:
        case bool():
            return [not value]
        case int():
            return [0, value + 1, -value]
        case float():
            return [0.0, -value]
        case str():
            return ["", value[::-1], value * 2]
        case list():
            return [[], value[:1], cast("JsonValue", value[::-1]), cast("JsonValue", value * 2)]
        case _:
            return []


def read_tests(text: str, most: int) -> list[Test]:
    """Read the tests that a model wrote: lines `{"args": […], "want": …}`; other lines are passed over, equal inputs
    taken once, and those that want nothing (`null`), which an empty function passes, left out."""
    tests: dict[str, Test] = {}
    for args, want in read_cases(text):
        if want is not None:
            tests.setdefault(json.dumps(args), (args, want))
    return list(tests.values())[:most]


def read_cases(text: str) -> Iterator[tuple[list[JsonValue], JsonValue]]:
    """Yield `args` and `want` of the lines `{"args": […], "want": …}` that a model wrote."""
    for line in text.splitlines():
        start = line.find("{")
        value = loads(line[start:].strip().rstrip(",")) if start >= 0 else None
        if isinstance(value, dict) and isinstance(args := value.get("args"), list):
            yield args, value.get("want")


def format_trace(program: str, reply: JsonValue) -> str:
    """Return the lines that a run of `build_tracer` told of, each with its text, for a prompt.

    >>> print(format_trace("def f(x):\\n    y = x + 1\\n    return y", [[2, "x = 1"], [2, "y = 2"], [3, "returns 2"]]))
    <BLANKLINE>
    What its lines did then:
    line 2: y = x + 1    # x = 1
    line 2: y = x + 1    # y = 2
    line 3: return y    # returns 2
    """
    texts = program.splitlines()
    lines: list[str] = []
    for entry in reply if isinstance(reply, list) else ():
        match entry:
            case [int(number), str(what)] if 0 < number <= len(texts):
                lines.append(f"line {number}: {texts[number - 1].strip()}    # {what}")
            case _:
                continue
    return "\n".join(["\nWhat its lines did then:", *lines])[:_MOST] if lines else ""
