"""Programs of a code search: what is run, what came of it, inputs made from others. Nothing is run here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import JsonValue

from plait.core.flow import Line

__all__ = ["Candidate", "Cell", "harness", "mutated", "outputs", "tests_in"]

MARK = "\x1eplait "
_HARNESS = """import json, sys
_out, sys.stdout = sys.stdout, sys.stderr
def _say(kind, value):
    try:
        line = json.dumps([kind, value], sort_keys=True)
    except (TypeError, ValueError):
        line = json.dumps(["other", repr(value)[:1000]])
    _out.write({mark} + line + "\\n")
    _out.flush()
_space = {{"__name__": "program"}}
try:
    exec(compile({program}, "program.py", "exec"), _space)
except BaseException as error:
    _say("broken", f"{{type(error).__name__}}: {{error}}")
else:
    for _args in json.loads({inputs}):
        try:
            _value = _space[{entry}](*_args)
        except BaseException as error:
            _say("error", f"{{type(error).__name__}}: {{error}}"[:500])
        else:
            _say("value", _value)
"""

Cell = tuple[str, Any]
"""What a call came to: `("value", …)`, `("error", "ValueError: …")`, `("other", repr)`, `("broken", …)`, or
`("none", None)` where the program was ended before."""


@dataclass(slots=True)
class Candidate:
    """A program, and what is known of it."""

    program: str
    key: str
    line: Line
    weight: int = 1
    """How many samples wrote it."""
    passed: int = 0
    """Public cases that it passes."""
    cells: dict[str, Cell] = field(default_factory=dict[str, Cell])
    """By input, as JSON."""

    def behaviour(self, inputs: Sequence[str]) -> str:
        """Return its outputs on the inputs as text: programs that do the same have the same."""
        return json.dumps([_kind(self.cells.get(each, ("none", None))) for each in inputs], sort_keys=True, default=str)


def _kind(cell: Cell) -> object:
    """Return what of a cell counts as behaviour: of an error only its class."""
    kind, value = cell
    return [kind, str(value).partition(":")[0]] if kind in ("error", "broken") else [kind, value]


def harness(program: str, entry: str, inputs: Sequence[Sequence[JsonValue]]) -> str:
    """Return a program that calls a function on inputs and prints what each came to, apart from what it prints."""
    return _HARNESS.format(
        mark=repr(MARK),
        program=repr(program),
        inputs=repr(json.dumps([list(each) for each in inputs])),
        entry=repr(entry),
    )


def outputs(said: JsonValue, count: int) -> list[Cell]:
    """Read what a run of `harness` printed: a cell for each of `count` inputs."""
    printed = said.get("stdout", "") if isinstance(said, dict) else ""
    cells: list[Cell] = []
    for line in str(printed).split("\n"):
        if not line.startswith(MARK):
            continue
        try:
            kind, value = json.loads(line[len(MARK) :])
        except (ValueError, TypeError, RecursionError):
            continue
        if kind == "broken":
            return [("broken", value)] * count
        cells.append((str(kind), value))
    return [*cells, *[("none", None)] * count][:count]


def mutated(args: Sequence[JsonValue]) -> list[list[JsonValue]]:
    """Return inputs like one that is known, each with one argument changed; they cost nothing."""
    found: list[list[JsonValue]] = []
    for at, value in enumerate(args):
        for other in _others(value):
            found.append([*args[:at], other, *args[at + 1 :]])
    return found


def _others(value: JsonValue) -> list[JsonValue]:
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


def tests_in(text: str, most: int) -> list[tuple[list[JsonValue], JsonValue]]:
    """Read the tests that a model wrote: lines `{"args": […], "want": …}`; other lines are passed over, equal inputs
    taken once, and those that want nothing (`null`), which an empty function passes, left out."""
    found: dict[str, tuple[list[JsonValue], JsonValue]] = {}
    for line in text.splitlines():
        start = line.find("{")
        try:
            said = json.loads(line[start:].strip().rstrip(",")) if start >= 0 else None
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict) and isinstance(said.get("args"), list) and said.get("want") is not None:
            found.setdefault(json.dumps(said["args"]), (said["args"], said["want"]))
    return list(found.values())[:most]
