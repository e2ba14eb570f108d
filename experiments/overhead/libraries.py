"""A step that does nothing in plait, beside burr and pydantic-graph.

`PYTHON` is the interpreter of an environment of their own (`python -m venv DIR && DIR/bin/pip install burr
pydantic-graph`). Chain of 200, fan of 1,000 and 5,000 steps in layers of 50, in turn and each in a process of its own;
CPU time a step. Without a journal, as the others write nothing down, and with the one that runs have by default.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait.core.messages import pluralise

from .._tools.kept import add_row
from .._tools.measure import Spread, interleave
from .step import DEPTH, HERE, WIDTH, measured_in

LIBRARIES = ("burr", "pydantic-graph")
OURS = {"plait": "", "plait with the journal": "+journal"}
PLANS = (("chain", DEPTH), ("fan", WIDTH), ("layers", 5000))
ABOUT = """# What a step costs that does nothing

A tool that does nothing and returns nothing, in a chain, a fan and layers, beside the same in
[burr](https://burr.apache.org) and [pydantic-graph](https://ai.pydantic.dev/graph).

`python -m experiments overhead --libraries PYTHON --rounds {number}`

CPU time a step, each in a process of its own, {rounds} in turn: median (lowest–highest), ratios taken round by round.
Threads that ran or waited for a core: {load:.1f} in the median.

| plan | | µs of CPU a step | ÷ burr | ÷ pydantic-graph |
|---|---|---|---|---|"""


def measured(python: str, library: str, what: str, size: int) -> float:
    """Return CPU microseconds a step of another library."""
    command = [python, str(Path(__file__).with_name("libraries_child.py")), library, what, str(size)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]


async def compare(python: str, rounds: int, kept: Path) -> None:
    """Measure all in turn and write a row for each contender of a plan: median, lowest and highest, its own and, for
    ours, divided by the others' of the same round; below 1, plait is faster."""
    for what, size in PLANS:

        async def ours(journal: str, what: str = what, size: int = size) -> float:
            return measured_in(HERE, what + journal, size)[0]

        async def theirs(library: str, what: str = what, size: int = size) -> float:
            return measured(python, library, what, size)

        contenders = {library: lambda library=library: theirs(library) for library in LIBRARIES}
        own = {name: lambda journal=journal: ours(journal) for name, journal in OURS.items()}
        figures = await interleave({**own, **contenders}, rounds, warmup=0)
        for name in figures.figures:
            over = {library: figures.ratio(name, library) for library in LIBRARIES if name in OURS}
            add_row(kept, {"plan": what, "steps": size, "contender": name, "rounds": rounds,
                           "microseconds": figures.spread(name), "over": over, "load": os.getloadavg()[0]})  # fmt: skip


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows."""
    rows = [json.loads(line) for line in lines]
    load = statistics.median(row["load"] for row in rows)
    number = min(row["rounds"] for row in rows)
    about = ABOUT.format(rounds=pluralise(number, "round"), number=number, load=load)
    return "\n".join([about, *map(_line, rows), ""])


def _line(row: dict[str, Any]) -> str:
    over = [str(Spread(*row["over"][library])) if library in row["over"] else "" for library in LIBRARIES]
    cells = f"{row['plan']} of {row['steps']:,}", row["contender"], str(Spread(*row["microseconds"])), *over
    return f"| {' | '.join(cells)} |"
