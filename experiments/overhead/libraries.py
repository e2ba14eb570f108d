"""A step that does nothing in plait, beside burr and pydantic-graph.

`PYTHON` is the interpreter of an environment of their own (`python -m venv DIR && DIR/bin/pip install burr
pydantic-graph`). Chain of 200, fan of 1,000 and 5,000 steps in layers of 50, in turn and each in a process of its own;
CPU time a step. Without a journal, as the others write nothing down, and with the one that runs have by default.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from .._tools.measure import Row, interleave
from .step import DEPTH, HERE, WIDTH, measured_in

LIBRARIES = ("burr", "pydantic-graph")
OURS = {"plait": "", "plait with the journal": "+journal"}
PLANS = (("chain", DEPTH), ("fan", WIDTH), ("layers", 5000))


def measured(python: str, library: str, what: str, size: int) -> float:
    """Return CPU microseconds a step of another library."""
    command = [python, str(Path(__file__).with_name("libraries_child.py")), library, what, str(size)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]


async def compare(python: str, rounds: int) -> list[Row]:
    """Measure all in turn; ratios are of CPU time a step, taken round by round: below 1, plait is faster."""
    rows = list[Row]()
    for what, size in PLANS:

        async def ours(journal: str, what: str = what, size: int = size) -> float:
            return measured_in(HERE, what + journal, size)[0]

        async def theirs(library: str, what: str = what, size: int = size) -> float:
            return measured(python, library, what, size)

        contenders = {library: lambda library=library: theirs(library) for library in LIBRARIES}
        own = {name: lambda journal=journal: ours(journal) for name, journal in OURS.items()}
        figures = await interleave({**own, **contenders}, rounds, warmup=0)
        for name in OURS:
            for library in LIBRARIES:
                there = f"{library} {figures.spread(library)} µs/step"
                ratio = str(figures.ratio(name, library))
                rows.append(Row(f"{what} of {size:,}, {name}", f"{figures.spread(name)} µs/step", there, ratio, "≤ 1"))
    return rows
