"""What does width cost on a CPU?

Tokens a second of the engine against how many lines it decodes at once, on this machine.

Shown beside every speed-up, so that no one takes a CPU for a GPU. Decides which widths are tried, in which order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plait_bench.countdown import CountdownProblem

from .._tools.base import Condition, Findings, Records, Table, circumstances
from .._tools.command import command
from .._tools.countdown import run_study
from .._tools.plots import Series, lines
from .._tools.statistics import Estimate

__all__ = ["Width"]

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
ROUNDS = 3
SAID = 8
"""The width that a sentence says something about: that of the studies' threads."""


class Width:
    """The price of width: what a second line of reasoning costs the first."""

    name = "width"
    title = "What width costs on this machine"
    question = "How many tokens a second does the engine generate, and each line of it, at each batch size?"
    theirs = ""

    engines: int | None = 1

    def conditions(self) -> Sequence[Condition]:
        """Every width in each of three rounds, so that slow spells of the machine fall on all of them."""
        request = {"planner": "single"}
        return [
            Condition(
                f"{model}-{width}-{i}", f"{model}, {width} at once", request, model, False, width, max(12, 3 * width)
            )
            for model in ("small", "large")
            for i in range(1, ROUNDS + 1)
            for width in WIDTHS
        ]

    def findings(self, records: Records, problems: Sequence[CountdownProblem], workers: int) -> Findings:
        """A row for each width: median of the rounds, lowest and highest."""
        found = Findings()
        rows: list[list[str]] = []
        series: list[Series] = []
        for model in ("small", "large"):
            points: list[tuple[float, Estimate, str]] = []
            base = None
            for width in WIDTHS:
                rates = [_rate(runs) for i in range(1, ROUNDS + 1) if (runs := records.get(f"{model}-{width}-{i}"))]
                if not rates:
                    continue
                whole = Estimate(float(np.median(rates)), min(rates), max(rates))
                base = base or whole.value
                line = whole.value / width
                rows.append(
                    [
                        model,
                        str(width),
                        whole.number(),
                        f"{line:,.0f}",
                        f"{whole.value / base:.1f}",
                        f"{base / line:.1f}",
                    ]
                )
                points.append((float(width), whole, ""))
                found.figures[f"{model}-{width}"] = {"tokens_per_second": whole}
            series.append(Series(f"{model} model", points))
            at = {width: estimate.value for width, estimate, _ in points}
            if base and SAID in at:
                found.claims.append(
                    f"With {SAID} lines at once the {model} model's engine generates {at[SAID] / base:.1f} times the "
                    f"tokens a second of one line, and each line takes {base * SAID / at[SAID]:.1f} times as long."
                )
        columns = ("model", "lines at once", "tokens/s", "tokens/s a line", "× one line, all", "a line is slower by ×")
        note = (
            "One engine. Median of three interleaved rounds, lowest and highest in brackets. On a GPU the last column "
            "stays near 1 up to some tens of lines; here every line beyond the first takes from the others."
        )
        note += circumstances([run for runs in records.values() for run in runs])
        found.tables.append(Table("Tokens a second against width", columns, rows, note))
        caption = "Engine throughput against width"
        figure = lines(series, "lines of reasoning at once", "tokens/s", caption, percent=False, log_x=True)
        found.plots.append(("width", caption, figure))
        return found


def _rate(runs: Sequence[dict[str, float]]) -> float:
    """Tokens a second while the batch was full: those of all runs over their seconds, times how many ran at once.

    A run's own seconds are used rather than the whole time, in which the last runs have the engine nearly alone.
    """
    width = runs[0]["concurrency"]
    return width * sum(r["total"] for r in runs) / sum(r["seconds"] for r in runs)


def main() -> None:
    """Run it, or what is missing of it, on the local engine."""
    command("width", lambda given: run_study(Width(), given))
