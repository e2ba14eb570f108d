"""A harness around a program's text that calls its functions and prints their results. This module runs no program."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue

Cell = tuple[str, JsonValue]
"""Outcome of a call: `("value", …)`, `("error", "ValueError: …")`, `("other", repr)`, `("broken", …)`, or `("none",
None)` if the program ended before the call."""

MAIN = "<main>"
"""Means the whole program in place of a function's name: the program reads standard input, and its result is its
standard output without trailing white space (`normalise_output`)."""
_MARK = "\x1eplait "
_MAIN = """

def _plait_main(text, source={source}):
    import io, sys
    kept, sys.stdin, sys.stdout = (sys.stdin, sys.stdout), io.TextIOWrapper(io.BytesIO(text.encode())), io.StringIO()
    out = sys.stdout
    try:
        exec(compile(source, "program.py", "exec"), {{"__name__": "__main__"}})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.stdin, sys.stdout = kept
    return "\\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\\n"))
"""
_FILES = """import os, sys
for _name, _text in {files}:
    os.makedirs(os.path.dirname(_name) or ".", exist_ok=True)
    with open(_name, "w", encoding="utf-8") as _file:
        _file.write(_text)
sys.path.insert(0, os.getcwd())
"""
_FILE = re.compile(r"^# file: (\S+)[ \t]*$\n?", re.MULTILINE)
_HARNESS = """import json, os, sys
def _run():
    out, sys.stdout = sys.stdout, sys.stderr
    mark, dumps, flush = {mark}, json.dumps, out.flush
    write = out.write
    if globals().get("__file__") == "main.py":  # in a sandbox: this text says the mark
        try:
            os.remove("main.py")
        except OSError:
            pass
    def say(kind, value):
        try:
            line = dumps([kind, value], sort_keys=True)
        except (TypeError, ValueError):
            line = dumps(["other", repr(value)[:1000]])
        write(mark + line + "\\n")
        flush()
    space = {{"__name__": "program"}}
    try:
        exec(compile({program}, "program.py", "exec"), space)
    except BaseException as error:
        say("broken", f"{{type(error).__name__}}: {{error}}")
        return
    for args in json.loads({inputs}):
        try:
            value = space[{entry}](*args)
        except BaseException as error:
            say("error", f"{{type(error).__name__}}: {{error}}"[:500])
        else:
            say("value", value)
_run()
"""


def harness(program: str, entry: str, inputs: Sequence[Sequence[JsonValue]], key: str) -> str:
    """Return a program that calls a function on inputs and prints each outcome, apart from the function's output.

    `key` is a random text, new for each run. Lines without the key are ignored, so a program cannot print a result by
    accident. A program that searches its call stack can find the key, but not the expected values.

    A program of several files has a line `# file: NAME` before each file. The harness writes the files to its folder
    and runs the last one. `entry` may be `MAIN`.
    """
    files, program = _split_files(program)
    if entry == MAIN:
        program, entry = _MAIN.format(source=repr(program)), "_plait_main"
    begin = _FILES.format(files=repr(files)) if files else ""
    return begin + _HARNESS.format(
        mark=repr(f"{_MARK}{key} "),
        program=repr(program),
        inputs=repr(json.dumps([list(arguments) for arguments in inputs])),
        entry=repr(entry),
    )


def _split_files(program: str) -> tuple[list[tuple[str, str]], str]:
    """Return the named files of a program, and the text of the last one, which is run."""
    _, *rest = _FILE.split(program)
    named = list(zip(rest[::2], rest[1::2], strict=True))
    safe = [(name, text) for name, text in named if not name.startswith("/") and ".." not in name.split("/")]
    return safe, named[-1][1] if named else program


def normalise_output(text: str) -> str:
    """Return an output for comparison, without trailing white space of the lines and the whole.

    >>> normalise_output("1 2 \\n3\\n\\n")
    '1 2\\n3'
    """
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def read_outputs(result: JsonValue, count: int, key: str) -> list[Cell]:
    """Parse the output of a `harness` run: a cell for each of `count` inputs."""
    printed = result.get("stdout", "") if isinstance(result, dict) else ""
    cells: list[Cell] = []
    mark = f"{_MARK}{key} "
    for line in str(printed).split("\n"):
        if mark not in line:  # the program's own output may precede it on the line
            continue
        try:
            kind, value = cast("list[JsonValue]", json.loads(line[line.index(mark) + len(mark) :]))
        except (ValueError, TypeError, RecursionError):
            continue
        # The program could not be parsed, so no input has a result.
        if kind == "broken":
            return [("broken", value)] * count
        cells.append((str(kind), value))
    return [*cells, *[("none", None)] * count][:count]


def has_returned(cell: Cell | None, want: JsonValue) -> bool:
    """Return whether a call returned exactly this value: `True` differs from 1, but 1.0 equals 1."""
    return cell is not None and cell[0] == "value" and _is_same(cell[1], want)


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def wrap_main(program: str, entry: str) -> tuple[str, str]:
    """Return a program with a function as its entry, so that text can be appended, and the function's name."""
    if entry != MAIN:
        return program, entry
    _, last = _split_files(program)
    return program[: len(program) - len(last)] + _MAIN.format(source=repr(last)), "_plait_main"
