"""How programs are asked what their functions return: a harness around a program's text. Nothing is run here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from pydantic import JsonValue

__all__ = ["Cell", "harness", "outputs", "timed"]

Cell = tuple[str, JsonValue]
"""What a call came to: `("value", …)`, `("error", "ValueError: …")`, `("other", repr)`, `("broken", …)`, or
`("none", None)` where the program was ended before."""

_MARK = "\x1eplait "
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

_TIMER = """

def _plait_timed(inputs, repeats):
    import copy, time
    loops, spent = 1, []
    while len(spent) < repeats:
        given = [copy.deepcopy(inputs) for _ in range(loops)]
        begun = time.process_time()
        for each in given:
            for args in each:
                {entry}(*args)
        took = time.process_time() - begun
        if took < 0.005 and loops < 1024:
            loops *= 2
        else:
            spent.append(took / loops)
    return spent
"""


def harness(program: str, entry: str, inputs: Sequence[Sequence[JsonValue]], key: str) -> str:
    """Return a program that calls a function on inputs and prints what each came to, apart from what it prints itself.

    `key` is a random text, new for each run: lines without it are not believed, so a program cannot print results.
    """
    return _HARNESS.format(
        mark=repr(f"{_MARK}{key} "),
        program=repr(program),
        inputs=repr(json.dumps([list(each) for each in inputs])),
        entry=repr(entry),
    )


def outputs(said: JsonValue, count: int, key: str) -> list[Cell]:
    """Read what a run of `harness` printed: a cell for each of `count` inputs."""
    printed = said.get("stdout", "") if isinstance(said, dict) else ""
    cells: list[Cell] = []
    mark = f"{_MARK}{key} "
    for line in str(printed).split("\n"):
        if mark not in line:  # the program's own text may stand before, on the same line
            continue
        try:
            kind, value = cast("list[JsonValue]", json.loads(line[line.index(mark) + len(mark) :]))
        except (ValueError, TypeError, RecursionError):
            continue
        if kind == "broken":
            return [("broken", value)] * count
        cells.append((str(kind), value))
    return [*cells, *[("none", None)] * count][:count]


def timed(program: str, entry: str, inputs: Sequence[Sequence[JsonValue]], repeats: int, key: str) -> str:
    """Return a program that times a function: its one value is a list of `repeats` times, in seconds of CPU a pass over
    all inputs. A pass is repeated until a time is 5 ms long. `key` as for `harness`."""
    return harness(
        program + _TIMER.format(entry=entry), "_plait_timed", [[[list(each) for each in inputs], repeats]], key
    )
