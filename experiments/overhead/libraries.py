"""A step that does nothing in plait, beside burr and pydantic-graph.

`PYTHON` is the interpreter of an environment of their own (`python -m venv DIR && DIR/bin/pip install burr
pydantic-graph`). Chain of 200, fan of 1,000 and 5,000 steps in layers of 50, in turn and each in a process of its own;
CPU time a step. Plait writes no journal, as the others write nothing down.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .._tools.measure import Row, interleave
from .step import DEPTH, HERE, WIDTH, measured_in

LIBRARIES = ("burr", "pydantic-graph")
PLANS = (("chain", DEPTH), ("fan", WIDTH), ("layers", 5000))


def measured(python: str, library: str, what: str, size: int) -> float:
    """Return CPU microseconds a step of another library."""
    command = [python, str(Path(__file__).with_name("libraries_child.py")), library, what, str(size)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]


async def compare(python: str, rounds: int) -> list[Row]:
    """Measure all in turn; ratios are of CPU time a step, taken round by round: below 1, plait is faster."""
    rows = list[Row]()
    for what, size in PLANS:

        async def ours(what: str = what, size: int = size) -> float:
            return measured_in(HERE, what, size)[0]

        async def theirs(library: str, what: str = what, size: int = size) -> float:
            return measured(python, library, what, size)

        contenders = {library: lambda library=library: theirs(library) for library in LIBRARIES}
        figures = await interleave({"plait": ours, **contenders}, rounds, warmup=0)
        said = f"{figures.spread('plait')} µs/step"
        for library in LIBRARIES:
            there = f"{library} {figures.spread(library)} µs/step"
            rows.append(Row(f"{what} of {size:,}", said, there, str(figures.ratio("plait", library)), "≤ 1"))
    return rows
