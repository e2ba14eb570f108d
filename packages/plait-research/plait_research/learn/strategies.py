"""Count the success of strategies in journals by task, for the draws of `route-record`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.core.ops import Plugin

from ..rollouts.export import ExportedRun


def utility(right: bool, tokens: int, price: float) -> float:
    """Return 1 minus `price` for each generated token (at least 0) for a right answer, and 0 for a wrong one."""
    return max(0.0, 1.0 - price * tokens) if right else 0.0


@dataclass(slots=True)
class StrategyCounts:
    """Counts of one strategy on one task."""

    planner: Plugin
    runs: int = 0
    right: int = 0
    tokens: int = 0
    wins: float = 0.0

    @property
    def losses(self) -> float:
        """Number of runs minus wins."""
        return self.runs - self.wins


@dataclass(slots=True)
class Table:
    """Counts by task and strategy."""

    rows: dict[tuple[str, str], StrategyCounts] = field(default_factory=dict[tuple[str, str], StrategyCounts])
    unjudged: int = 0
    """Number of runs that the task cannot grade."""

    def add(self, run: ExportedRun, price: float) -> None:
        """Count a graded run."""
        planner, task = run.run.request.planner, run.run.request.task.name
        row = self.rows.setdefault((task, _key(planner)), StrategyCounts(planner))
        right = bool(run.right)
        row.runs += 1
        row.right += right
        row.tokens += run.tokens
        row.wins += utility(right, run.tokens, price)


def count(runs: Iterable[ExportedRun], price: float = 0.0, arms: Sequence[str] = ()) -> Table:
    """Count runs; with `arms` (`sample:n=8`, …) only those of these strategies, which are there even with no run.

    A run without an answer is a loss, or a strategy that often fails would look better than it is. Where the task could
    grade no answer at all, it is empty.
    """
    table = Table()
    wanted = {_key(arm): arm for arm in map(Plugin.of, arms)}
    unanswered: list[ExportedRun] = []
    for run in runs:
        if wanted and _key(run.run.request.planner) not in wanted:
            continue
        if run.answer is None:
            unanswered.append(run)
        elif run.right is None:
            table.unjudged += 1
        else:
            table.add(run, price)
    judged = {task for task, _ in table.rows}
    for run in unanswered:
        if run.run.request.task.name in judged:
            table.add(run, price)
        else:
            table.unjudged += 1
    for task in judged:
        for key, planner in wanted.items():
            table.rows.setdefault((task, key), StrategyCounts(planner))
    return table


def drawing(table: Table, task: str, most: float = math.inf) -> Plugin:
    """Return the planner `route-record` with the learned state of a task's strategies.

    With `most`, the counts of a strategy are scaled down to at most `most` runs, so that new runs can change old
    results."""
    tiers: list[dict[str, Any]] = []
    for (name, _), row in sorted(table.rows.items()):
        if name == task:
            scale = min(1.0, most / row.runs) if row.runs else 1.0
            tiers.append(
                {
                    "planner": row.planner.model_dump(mode="json"),
                    "wins": round(row.wins * scale, 6),
                    "losses": round(row.losses * scale, 6),
                }
            )
    return Plugin(name="route-record", options={"candidates": tiers})


def _key(planner: Plugin) -> str:
    return planner.name + "".join(f",{key}={value!r}" for key, value in sorted(planner.options.items()))
