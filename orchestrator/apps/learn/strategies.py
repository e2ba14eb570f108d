"""How well strategies did, counted in journals by task: what the planner `portfolio` draws by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.ops import Plugin
from ...runtime.plugins.spec import parse_plugin
from ..rollouts.export import Kept

__all__ = ["Counts", "count", "portfolio", "utility"]


def utility(right: bool, tokens: int, price: float) -> float:
    """Return 1 for a right answer less `price` a generated token, 0 at least; 0 for a wrong one."""
    return max(0.0, 1.0 - price * tokens) if right else 0.0


@dataclass(slots=True)
class Counts:
    """What is known of one strategy on one task."""

    planner: Plugin
    runs: int = 0
    right: int = 0
    tokens: int = 0
    wins: float = 0.0

    @property
    def losses(self) -> float:
        """Runs less the wins."""
        return self.runs - self.wins


@dataclass(slots=True)
class Table:
    """Counts by task and strategy."""

    rows: dict[tuple[str, str], Counts] = field(default_factory=dict[tuple[str, str], Counts])
    unjudged: int = 0
    """Runs of which the task cannot tell whether they are right."""


def count(runs: Iterable[Kept], price: float = 0.0, arms: Sequence[str] = ()) -> Table:
    """Count runs; with `arms` (`sample:n=8`, …) only those of these strategies, which are there even with no run."""
    table = Table()
    wanted = {_key(each): each for each in map(parse_plugin, arms)}
    for run in runs:
        planner, task = run.run.request.planner, run.run.request.task.name
        if wanted and _key(planner) not in wanted:
            continue
        if run.right is None:
            table.unjudged += 1
            continue
        row = table.rows.setdefault((task, _key(planner)), Counts(planner))
        row.runs += 1
        row.right += run.right
        row.tokens += run.tokens
        row.wins += utility(run.right, run.tokens, price)
    for task in {task for task, _ in table.rows}:
        for key, planner in wanted.items():
            table.rows.setdefault((task, key), Counts(planner))
    return table


def portfolio(table: Table, task: str, most: float = math.inf) -> Plugin:
    """Return the planner `portfolio` with what is known of a task's strategies. With `most` the counts of an arm are
    scaled down to so many runs, so that what was learned long ago can be learned anew."""
    arms: list[dict[str, Any]] = []
    for (name, _), row in sorted(table.rows.items()):
        if name == task:
            scale = min(1.0, most / row.runs) if row.runs else 1.0
            arms.append(
                {
                    "planner": row.planner.model_dump(mode="json"),
                    "wins": round(row.wins * scale, 6),
                    "losses": round(row.losses * scale, 6),
                }
            )
    options: Any = {"arms": arms}
    return Plugin(name="portfolio", options=options)


def _key(planner: Plugin) -> str:
    return planner.name + "".join(f",{key}={value!r}" for key, value in sorted(planner.options.items()))
