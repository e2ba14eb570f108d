"""For the same arithmetic work: one search with backtracking, or the best of many answers?

One search with backtracking, or many direct answers for the same arithmetic work?

Decides the conditions and how work (FLOPs) is counted. After To Backtrack or Not to Backtrack (arXiv 2504.07052).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plait.runtime.client.config import BUNDLED_MODEL
from plait_bench.countdown import CountdownProblem

from .._tools.base import Condition, Findings, Record, Records, Table
from .._tools.command import command
from .._tools.countdown import run_study
from .._tools.plots import Series, lines
from .._tools.statistics import difference, mean, pass_at

__all__ = ["BacktrackOrNot"]

SAMPLES = 64
SHOWN = (1, 2, 4, 8, 16, 32, 64)


class Shape(NamedTuple):
    """What the work of a token depends on."""

    parameters: int
    layers: int
    width: int


def shape_of(folder: Path) -> Shape:
    """Return the shape of a Llama with tied embeddings, from its `config.json`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    d, ff, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    layer = 4 * d * d + 3 * d * ff + 2 * d  # attention, gated feed-forward, two norms
    return Shape(config["vocab_size"] * d + layers * layer + d, layers, d)


SHAPES = {"small": shape_of(BUNDLED_MODEL), "large": shape_of(BUNDLED_MODEL.with_name("countdown-large"))}
"""Of the two bundled models."""


class BacktrackOrNot:
    """Serial search against FLOP-matched best-of-n of the direct mode of the same model."""

    name = "backtrack_or_not"
    title = "Backtrack, or answer many times?"
    question = "For the same arithmetic work, does one search with backtracking solve more than the best of n answers?"
    theirs = (
        "To Backtrack or Not to Backtrack (arXiv 2504.07052) reports for models of its own, trained from nothing on "
        "Countdown with equal compute, that the best of n direct answers beats the model that searches with "
        "backtracking, and that on Sudoku, where the search tree is deeper, it is the other way round. That is theirs."
    )

    engines: int | None = None

    def conditions(self) -> Sequence[Condition]:
        """One search, and 64 direct answers, by each model."""
        found: list[Condition] = []
        direct = f"sample:n={SAMPLES},answer.temperature=1,answer.max_tokens=48,style=direct,merge=collect"
        for model in SHAPES:
            found.append(Condition(f"serial-{model}", f"serial search, {model}", {"planner": "single"}, model))
            found.append(Condition(f"direct-{model}", f"direct, {model}", {"planner": direct}, model, branches=True))
        return found

    def findings(self, records: Records, problems: Sequence[CountdownProblem], workers: int) -> Findings:
        """A row for each number of answers, and where the work is equal."""
        found = Findings()
        rows: list[list[str]] = []
        series: list[Series] = []
        for model, shape in SHAPES.items():
            serial, direct = records.get(f"serial-{model}"), records.get(f"direct-{model}")
            if not serial or not direct:
                continue
            count = min(len(serial), len(direct))
            rows += _model(model, shape, serial[:count], direct[:count], found, series)
        columns = ("model", "method", "solved", "work, MFLOP a problem", "generated tokens")
        note = (
            "Work: 2 FLOP a parameter and token, and 4 a layer, channel and position attended to, over prompt and "
            "output, every sample counted whole (no prefix cache). Best of n: a verifier chooses; unbiased estimator "
            f"from {SAMPLES} samples at temperature 1. The row *equal work* stands at the n whose work is nearest to "
            "the search's."
        )
        found.tables.append(Table("Solved for the same work", columns, rows, note))
        caption = "Solved against work (n as marked)"
        figure = lines(series, "MFLOP a problem", "solved, %", caption, log_x=True)
        found.plots.append(("backtrack-or-not", caption, figure))
        return found


def work(shape: Shape, prompt: int, generated: int) -> float:
    """Return the FLOPs of reading a prompt and generating after it: `2 N` a token for the products with the weights,
    `4 L d t` for attention to t positions (Kaplan et al., arXiv 2001.08361, section 2.1)."""
    length = prompt + generated
    return 2.0 * shape.parameters * length + 4.0 * shape.layers * shape.width * length * (length + 1) / 2


def _model(
    model: str,
    shape: Shape,
    serial: Sequence[Record],
    direct: Sequence[Record],
    found: Findings,
    series: list[Series],
) -> list[list[str]]:
    search = [work(shape, r["prompt"], r["total"]) for r in serial]
    solved = [float(r["solved"]) for r in serial]
    target = float(np.mean(search))
    samples = [
        float(np.mean([work(shape, r["prompt"] // SAMPLES, b["tokens"]) for b in r["branches"]])) for r in direct
    ]
    tokens = float(np.mean([b["tokens"] for r in direct for b in r["branches"]]))
    right = [sum(b["right"] for b in r["branches"]) for r in direct]
    each = float(np.mean(samples))
    equal = min(range(1, SAMPLES + 1), key=lambda n: abs(n * each - target))
    estimate = mean(solved)
    length = float(np.mean([r["total"] for r in serial]))
    rows = [[model, "serial search, T=0", estimate.percent(), f"{target / 1e6:,.0f}", f"{length:.0f}"]]
    figures: dict[str, Any] = {"serial": {"solved": estimate, "flop": target, "tokens": length}, "direct": {}}
    points: list[Any] = []
    for n in sorted({*SHOWN, equal}):
        passed = [pass_at(SAMPLES, r, n) for r in right]
        best = mean(passed)
        name = f"best of {n}" + (", equal work" if n == equal else "")
        rows.append([model, name, best.percent(), f"{n * each / 1e6:,.0f}", f"{n * tokens:.0f}"])
        figures["direct"][str(n)] = {"solved": best, "flop": n * each, "tokens": n * tokens}
        points.append((n * each / 1e6, best, str(n)))
    gap = difference(solved, [pass_at(SAMPLES, r, equal) for r in right])
    figures["equal"] = {"n": equal, "difference": gap}
    found.figures[model] = figures
    found.claims.append(
        f"The {model} model's search solves {gap.points()} compared with the best of {equal} direct answers, "
        "which cost the same work."
    )
    series.append(Series(f"best of n direct answers, {model}", points))
    series.append(Series(f"serial search, {model}", [(target / 1e6, estimate, "")]))
    return rows


def main() -> None:
    """Run it, or what is missing of it, on the local engine."""
    command("backtrack_or_not", lambda given: run_study(BacktrackOrNot(), given))
