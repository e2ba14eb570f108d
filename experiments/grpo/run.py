"""Do records of rollouts train? GRPO on five-number Countdown by threads.

The commands are those of `python -m training.grpo`: `start`, `train`, `evaluate`; `--out` writes the page: what was
trained how long, the curve, and both models on the held-out problems.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from experiments._tools.base import Table
from experiments._tools.machine import machine
from experiments._tools.page import contents, put
from training.grpo import __main__ as training
from training.grpo.evaluate import Pair, table

__all__ = ["main", "write"]

WINDOW = 10
"""Steps of a row of the curve."""
_COLUMNS = {"solved": 3, "thread_hits": 3, "critical": 1, "total": 1, "gap": 4}


def write(pair: Pair, curve: Path, command: str, out: Path) -> Path:
    """Write `data/grpo.json` and the page made of it into a folder; return the page."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in curve.read_text().splitlines()]
    shown: list[list[str]] = []
    for start in range(0, len(rows), WINDOW):
        part = rows[start : start + WINDOW]
        means = [f"{sum(row[name] for row in part) / len(part):.{digits}f}" for name, digits in _COLUMNS.items()]
        shown.append([f"{part[0]['step']}–{part[-1]['step']}", *means])
    lines = table(pair).split("\n\n")
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[0].splitlines()]
    spent = rows[-1]
    sides = [
        {"name": side.name, "temperature": side.temperature, "n": len(side.solved), "solved": sum(side.solved),
         "critical": statistics.fmean(side.critical), "total": statistics.fmean(side.total),
         "threads": sum(side.threads), "hits": sum(side.hits)}
        for side in pair.sides
    ]  # fmt: skip
    tables = [
        Table("Held-out problems", tuple(cells[0]), cells[2:], "Five numbers, eight threads a round, two rounds."),
        Table(
            "The curve",
            ("steps", "solved", "threads that hit", "critical path", "total tokens", "gap in log p"),
            shown,
            "Rollouts at temperature 1 on training problems, as they were trained on; gap in log p: mean difference "
            "between the sampler's log-probability (float32) and the trainer's (bfloat16) before an update.",
        ),
    ]
    page = contents(
        name="grpo",
        title="Reinforcement learning on rollout records",
        question="Do records of rollouts train? GRPO on five-number Countdown by threads.",
        command=command,
        machine=[machine()],
        about=(
            "Before: the bundled model after a short supervised training on five-number traces. After: GRPO on its own "
            f"rollouts, {spent['step']} steps, {spent['cpu']:.0f} s of one CPU core at the lowest priority. No problem "
            "with a held-out set of numbers was trained on."
        ),
        claims=[line.strip() for line in lines[1:]],
        tables=tables,
        plots=[],
        theirs=(
            "Adaptive Parallel Reasoning (arXiv 2504.15466) reports 75.5 → 83.4 % by reinforcement learning of a "
            "228-million-parameter model on another form of Countdown; ours are not to be compared number by number."
        ),
        figures={"sides": sides, "differences": pair.differences, "curve": rows},
    )
    return put(page, out)


def main() -> None:
    """Run the command."""
    training.main(write=write)
