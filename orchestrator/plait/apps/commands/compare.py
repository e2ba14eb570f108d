"""Several planners on the same problems: a table with intervals, differences paired by problem, a plot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ...core.errors import ConfigError, UsageError
from ...core.notebook_html import bar, escape_text, table
from ...core.provenance import Provenance
from ..common.intervals import paired, wilson
from ..common.output import Output, opened


@dataclass(frozen=True, slots=True)
class PlannerComparison:
    """One planner's figures over the problems that all of them were run on. Intervals are of 95 %."""

    name: str
    n: int
    solved: float
    low: float
    high: float
    tokens: float
    """Generated a problem, on average."""
    critical: float
    """Tokens one after another a problem, on average."""
    seconds: float
    """Of one problem, on average."""
    cost: float = 0.0
    """Of one problem, on average; 0 where no price is known."""
    difference: tuple[float, float, float] | None = None
    """Share solved less that of the first planner, with its interval, paired by problem."""
    tokens_ratio: float | None = None
    """Tokens by those of the first planner."""


class Comparison(tuple[PlannerComparison, ...]):
    """Planners on the same problems, each compared with the first one. A notebook shows it as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the table, with the interval of each share as a bar."""
        rows = [
            (
                escape_text(row.name), f"{row.solved:.0%}",
                bar(row.low, row.high, 1.0), f"{row.low:.0%} to {row.high:.0%}",
                "" if row.difference is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*_points(row.difference)),
                f"{row.tokens:,.0f}", f"{row.seconds:.2f}",
            )
            for row in self
        ]  # fmt: skip
        head = ("planner", "solved", "95 % interval", "", "points more than the first", "tokens", "seconds")
        return table(head, rows) + f"All answered the same {self[0].n} problems; differences are paired by problem"


def compared(runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> Comparison:
    """Return the figures of each planner over the problems that all have in common; the first is the one the others are
    compared with. Raises `UsageError` if they have none."""
    by_problem = {name: _by_problem(records) for name, records in runs.items()}
    # Only problems that all have run: a planner that was ended early must not win by the easy ones.
    common = [key for key in next(iter(by_problem.values())) if all(key in records for records in by_problem.values())]
    if not common:
        raise UsageError("the results have no problem in common: compare runs on the same file of problems")
    first: list[float] = []
    rows: list[PlannerComparison] = []
    base_tokens = 0.0
    for name, records in by_problem.items():
        mine = [records[key] for key in common]
        hits = [float(bool(record["solved"])) for record in mine]
        low, high = wilson(int(sum(hits)), len(hits))
        tokens = _mean(mine, "total_tokens")
        row = PlannerComparison(
            name,
            len(hits),
            sum(hits) / len(hits),
            low,
            high,
            tokens,
            _mean(mine, "critical_path_tokens"),
            _mean(mine, "seconds"),
            _mean(mine, "cost"),
            paired(hits, first) if first else None,
            tokens / base_tokens if first and base_tokens else None,
        )
        if not first:
            first, base_tokens = hits, tokens
        rows.append(row)
    return Comparison(rows)


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(record.get(name) or 0.0) for record in records) / len(records)


def _by_problem(records: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the records by problem. The order distinguishes equal problems."""
    times: Counter[str] = Counter()
    records_by: dict[str, Mapping[str, Any]] = {}
    for record in records:
        known = {key: record[key] for key in ("text", "want", "numbers", "target") if key in record}
        problem = json.dumps(known, sort_keys=True)
        records_by[f"{problem} {times[problem]}"] = record
        times[problem] += 1
    return records_by


def differences(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return in what else than the planner the runs differ from the first, as far as their records say what they are
    made of. Raises `UsageError` for runs of different tasks: they were graded by different rules."""
    made: dict[str, Provenance] = {}
    for name, records in runs.items():
        if first_made := next((record["made_of"] for record in records if record.get("made_of")), None):
            request = {
                key: value for key, value in first_made["request"].items() if key not in ("planner", "n", "merge")
            }
            made[name] = Provenance.model_validate({**first_made, "request": request})
    first, *others = made or [""]
    notes: list[str] = []
    for name in others:
        if difference := made[first].difference(made[name]):
            notes.append(f"{first} (there) and {name} (here) differ in more than the planner: {difference}")
        # Different seeds or widths can be looked past; different rules of grading cannot.
        if made[first].request.get("task") != made[name].request.get("task"):
            raise UsageError(f"{first} and {name} are of different tasks, so they were graded by different rules")
    return notes


def show(rows: Sequence[PlannerComparison], output: Output) -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False)
    priced = any(row.cost for row in rows)
    columns = ("planner", "solved", "95 % interval", "against the first", "tokens", "× tokens", "critical", "seconds")
    for column in (*columns, *(["cost"] if priced else [])):
        table.add_column(column, justify="left" if column == "planner" else "right", no_wrap=column != "planner")
    for row in rows:
        difference = "" if row.difference is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*_points(row.difference))
        ratio = "" if row.tokens_ratio is None else f"{row.tokens_ratio:.2f}"
        cost = [f"{row.cost:.2g}"] if priced else []
        table.add_row(
            row.name, f"{row.solved:.1%}", f"{row.low:.1%}–{row.high:.1%}", difference, f"{row.tokens:,.0f}", ratio,
            f"{row.critical:,.0f}", f"{row.seconds:.2f}", *cost,
        )  # fmt: skip
    output.print_whole(table)
    output.people.print(
        f"All answered the same {rows[0].n} problems. Differences are in percentage points, paired by problem."
    )


def _points(difference: tuple[float, float, float]) -> tuple[float, ...]:
    return tuple(100 * part for part in difference)


def plot(rows: Sequence[PlannerComparison], path: Path) -> None:
    """Draw share solved against tokens. Raises `UsageError` without matplotlib, `ConfigError` for a file that cannot be
    written."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UsageError("a plot needs matplotlib: pip install 'plait[plot]'") from None
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        spread = [[100 * (row.solved - row.low)], [100 * (row.high - row.solved)]]
        axes.errorbar([row.tokens], [100 * row.solved], yerr=spread, fmt="o", capsize=3, label=row.name)
    axes.set_xlabel("generated tokens a problem")
    axes.set_ylabel("solved, % (95 % interval)")
    axes.set_xlim(left=0)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path} cannot be written: {error}") from None


def compare(files: Sequence[Path], plot_to: Path | None, as_json: bool) -> None:
    """Compare saved results of several planners on the same problems. Raises `ConfigError`, `UsageError`."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in files:
        own: dict[str, list[dict[str, Any]]] = {}
        for record in _records(path):
            own.setdefault(str(record.get("planner") or path.stem), []).append(record)
        # two files may hold results of one planner, or have one name
        runs |= {name if name not in runs else f"{name} ({path})": records for name, records in own.items()}
    rows = compared(runs)
    with opened(as_json) as output:
        for note in differences(runs):
            output.progress.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
        if plot_to is not None:
            plot(rows, plot_to)
        output.result({"compared": [asdict(row) for row in rows]}) if as_json else show(rows, output)


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("solved"), bool):
            raise ConfigError(f"{path}, line {number}, is no result: give files that `plait eval --out` wrote")
        records.append(record)
    if not records:
        raise ConfigError(f"{path} holds no results")
    return records
