"""The numbers of the model card: serial, sampled serial with a verifier, direct, and spawn/join, on
held-out problems.

Decides the set of problems (the test split, fixed seed) and what is reported. "Solved" is always exact
arithmetic with all four numbers used once, never the model's word.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .controller import Outcome, Puzzle, ThreadCounts, run_single, run_threads
from .model import Llama
from .task import draw_problem, is_test

SAMPLES = 8


def held_out(count: int, seed: int = 2024) -> list[Puzzle]:
    """Distinct solvable problems of the test split."""
    rng = random.Random(seed)
    found: dict[Puzzle, None] = {}
    while len(found) < count:
        problem = draw_problem(rng, test=True)
        if not is_test(problem.numbers):
            raise AssertionError(f"not of the test split: {problem.numbers}")
        found[problem.numbers, problem.target] = None
    return list(found)


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share."""
    p = successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


@dataclass
class Row:
    """One line of the table; token figures are means over all problems."""

    name: str
    n: int
    solved: float
    interval: tuple[float, float]
    false_claims: float
    critical: float
    first_hit: float
    total: float
    counts: dict[str, float] | None = None
    seconds: float = 0.0


def row_of(name: str, outcomes: Sequence[Outcome], counts: ThreadCounts | None = None) -> Row:
    """The line of one run."""
    n, solved = len(outcomes), sum(o.solved for o in outcomes)
    extra = None
    if counts is not None:
        extra = {
            "rounds_per_problem": counts.rounds / n,
            "distinct_valid_share": counts.distinct / max(1, counts.wanted),
            "invalid_per_problem": counts.invalid / n,
            "child_recall": counts.hits / max(1, counts.hits_possible),
            "child_false_claims": counts.false_claims / max(1, counts.distinct),
        }
    return Row(
        name, n, solved / n, wilson(solved, n),
        sum(o.claimed and not o.solved for o in outcomes) / n,
        statistics.fmean(o.critical for o in outcomes),
        statistics.fmean(o.first_hit for o in outcomes),
        statistics.fmean(o.total for o in outcomes),
        extra,
    )  # fmt: skip


def best_of(model: Llama, puzzles: Sequence[Puzzle], samples: int, seed: int) -> list[Outcome]:
    """Serial, sampled several times at temperature 1, any right one counts (exact verifier)."""
    runs = [run_single(model, "serial", puzzles, 8, 1.0, seed + i) for i in range(samples)]
    out = []
    for tries in zip(*runs, strict=True):
        right = [t for t in tries if t.solved]
        longest = max(t.critical for t in tries)
        first = min((t.critical for t in right), default=longest)
        wrong = any(t.claimed and not t.solved for t in tries)
        out.append(Outcome(bool(right), bool(right) or wrong, longest, sum(t.total for t in tries), first))
    return out


def evaluate(model: Llama, count: int, quick: bool = False, seed: int = 7) -> list[Row]:
    """All lines of the table on `count` held-out problems; `quick` leaves out the sampled and the small
    ones.
    """
    puzzles, rows = held_out(count), []

    def add(name: str, outcomes: Sequence[Outcome], counts: ThreadCounts | None, begun: float) -> None:
        row = row_of(name, outcomes, counts)
        row.seconds = time.monotonic() - begun
        rows.append(row)
        print(line(row), flush=True)

    print(HEAD)
    begun = time.monotonic()
    add("serial, T=0", run_single(model, "serial", puzzles, 8), None, begun)
    plans: list[tuple[str, int, bool, float]] = [("threads k=8 forked, T=0", 8, True, 0.0)]
    if not quick:
        begun = time.monotonic()
        add("direct, T=0", run_single(model, "direct", puzzles, None), None, begun)
        begun = time.monotonic()
        add(f"serial n={SAMPLES}, verifier, T=1", best_of(model, puzzles, SAMPLES, seed), None, begun)
        plans += [
            ("threads k=8 fresh, T=0", 8, False, 0.0),
            ("threads k=8 forked, parent T=1", 8, True, 1.0),
            ("threads k=6 forked, T=0", 6, True, 0.0),
            ("threads k=4 forked, T=0", 4, True, 0.0),
            ("threads k=2 forked, T=0", 2, True, 0.0),
        ]
    for name, k, forked, temperature in plans:
        begun = time.monotonic()
        outcomes, counts = run_threads(model, puzzles, k, forked, temperature, 0.0, seed)
        add(name, outcomes, counts, begun)
    return rows


HEAD = (
    "| mode | n | solved (95 % interval) | false claims | critical path | first hit | total tokens "
    "| rounds | distinct valid / k | invalid spawns | child recall | child false |\n" + "|---" * 12 + "|"
)


def line(row: Row) -> str:
    """A row of the table in Markdown."""
    low, high = row.interval
    cells = [
        row.name, str(row.n), f"{100 * row.solved:.1f} % ({100 * low:.1f}–{100 * high:.1f})",
        f"{100 * row.false_claims:.1f} %", f"{row.critical:.0f}", f"{row.first_hit:.0f}", f"{row.total:.0f}",
    ]  # fmt: skip
    if row.counts is None:
        cells += [""] * 5
    else:
        c = row.counts
        cells += [
            f"{c['rounds_per_problem']:.2f}", f"{c['distinct_valid_share']:.3f}",
            f"{c['invalid_per_problem']:.3f}",
            f"{100 * c['child_recall']:.1f} %", f"{100 * c['child_false_claims']:.2f} %",
        ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


TABLE = ("<!-- table: python -m training evaluate -->", "<!-- end of table -->")
"""Marks in a model card between which the table stands."""


def update_card(rows: Sequence[Row], card: Path) -> bool:
    """Put the rows into a model card, between its marks; returns whether there were any."""
    return put_table("\n".join([HEAD, *(line(row) for row in rows)]), card)


def put_table(table: str, card: Path) -> bool:
    """Put a table into a model card, between its marks; returns whether there were any."""
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    before, begin, rest = text.partition(TABLE[0])
    _, end, after = rest.partition(TABLE[1])
    if not begin or not end:
        return False
    card.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
    return True


def save_rows(rows: Sequence[Row], path: Path) -> None:
    """Keep the figures as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([vars(row) for row in rows], indent=2) + "\n")
