"""Graded rows: problems of a task, a file with answers, or saved results; each planner on all, and a comparison."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import ENOENT
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from ...core.errors import UsageError
from ...core.ops import Plugin
from ...core.request import Request
from ...core.values import as_text
from ...runtime.client.config import Config
from ...runtime.plugins.spec import trust, typed
from ..commands.eval import EvalCounts, compare, evaluated, report, writable
from ..commands.run import model_warnings
from ..common.dataset import (
    DatasetQuestion,
    GuessedColumns,
    drawn_questions,
    environment_of,
    guess_columns,
    of_a_set,
    raw_rows,
    read_questions,
)
from ..common.options import all_typed
from ..common.output import Output, opened
from ..common.session import choose_model

_DRAWN_PROBLEMS = 100
_QUICK_ROWS = 20
_QUICK_PLANNERS = ("single", "sample:n=5", "route")
_QUICK_PLANNER_FOR_TOOLS = "llmcompiler"
_SAMPLED_ROWS = 20
"""Rows from which the columns are guessed."""
_ANSWER_FORM = """single:answer.template="{question} End with a line: Answer: X\""""


@dataclass(frozen=True, slots=True)
class Grading:
    """The options of `plait eval`, which `plait batch` has too."""

    out: Annotated[
        Path | None, typer.Option(metavar="OUT.jsonl|parquet", help="Output file, in the input's order.")
    ] = None
    text: Annotated[str, typer.Option(metavar="FIELD", help="Column with the question.")] = ""
    want: Annotated[str, typer.Option(metavar="FIELD", help="Column with the right answer.")] = ""
    quick: Annotated[
        bool, typer.Option("--quick", help="20 rows by `single`, `sample:n=5` and `route`, unless others are named.")
    ] = False
    limit: Annotated[int | None, typer.Option(min=1, help="Number of rows; all of a file or 100 drawn by default.")] = (
        None
    )
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent rows (with --actors: in each).")] = 64
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME[:k=v,…]", callback=typed,
                     help="Meaning of a row's text; `plain` by default, with numbers compared as numbers."),
    ] = None  # fmt: skip
    planner: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:k=v,…]", callback=all_typed,
                     help="Planner that splits requests; several are graded and compared with the first."),
    ] = None  # fmt: skip
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME[:k=v,…]", callback=typed,
                     help="Environment that runs and grades answers (`code:sandbox=process`); the task's by default."),
    ] = None  # fmt: skip
    plot: Annotated[Path | None, typer.Option(metavar="OUT.png", help="Plot of solved against tokens.")] = None


@dataclass(frozen=True, slots=True)
class GradedProblems:
    """The problems to run, and how they were graded."""

    problems: Sequence[DatasetQuestion]
    task: str
    columns: GuessedColumns | None = None


def is_file(source: str) -> bool:
    """Return whether a source is a file of rows rather than a task."""
    return Path(source).suffix.lower() in (".csv", ".jsonl", ".parquet") or Path(source).is_file()


def grade(sources: Sequence[str], grading: Grading, config: Config, request: Request, as_json: bool) -> None:
    """Run each planner on all problems and print its solved problems and cost, or compare saved results."""
    if len(sources) > 1 or _holds_results(sources[0]):
        compare([Path(source) for source in sources], grading.plot, as_json)
        return
    # Count every token, including those of cancelled answers.
    config = config.model_copy(update={"stream_above_tokens": config.stream_above_tokens or 0})
    graded = _read_file(Path(sources[0]), grading) if is_file(sources[0]) else _draw(sources[0], grading, config)
    request = request.updated({"task": graded.task})
    config = choose_model(config, request.task.name)
    asked = _requests(grading, config, request)
    warnings = _warnings(config, asked.values(), graded.problems[0].text)
    with opened(as_json) as output, writable(grading.out) as file:
        _print_notes(sources[0], graded, warnings, output)
        tallies = {name: EvalCounts() for name in asked}
        cancelled, start = evaluated(config, graded.problems, asked, grading.concurrency, tallies, output)
        _write_records(file, tallies)
        about = _about(graded, cancelled, start, warnings)
        summaries = [{**tally.summary(), **about, "planner": name} for name, tally in tallies.items()]
        report(summaries, tallies, output, as_json, grading.plot)
        if graded.columns is not None and not as_json and not cancelled:
            _print_advice(sources[0], graded.columns, tallies, request.task, grading.quick, output)
    code = 130 if cancelled else int(all(tally.failed == tally.n for tally in tallies.values()))
    if code:
        raise typer.Exit(code)


def _about(graded: GradedProblems, cancelled: bool, start_seconds: float, warnings: list[str]) -> dict[str, Any]:
    """Return the part that the summaries of all planners share."""
    return {
        "status": "cancelled" if cancelled else "done",
        "task": graded.task,
        "problems": len(graded.problems),
        **({} if graded.columns is None else {"text": graded.columns.text, "want": graded.columns.want}),
        "start_seconds": round(start_seconds, 3),
        "warnings": warnings,
    }


def _requests(grading: Grading, config: Config, request: Request) -> dict[str, Request]:
    """Return the request of each planner, by the planner's name."""
    usual = [*_QUICK_PLANNERS, *([_QUICK_PLANNER_FOR_TOOLS] if config.tools or config.mcp else ())]
    trust(*(grading.planner or ()))
    planners = list(dict.fromkeys(grading.planner or (usual if grading.quick else [""])))
    return {name or config.planner.name: request.updated({"planner": name} if name else {}) for name in planners}


def _warnings(config: Config, requests: Iterable[Request], text: str) -> list[str]:
    """Return the planners' different warnings about the model."""
    graded = (model_warnings(config, request.updated({"text": text})) or () for request in requests)
    return list(dict.fromkeys(warning for warnings in graded for warning in warnings))


def _draw(source: str, grading: Grading, config: Config) -> GradedProblems:
    """Return problems that a task draws. Raises `UsageError`."""
    if grading.task is not None:
        raise UsageError(f"--task goes with a file, not with the task {source!r}: write `plait eval {grading.task}`")
    task = of_a_set(source)
    count = grading.limit or (_QUICK_ROWS if grading.quick else _DRAWN_PROBLEMS)
    place = environment_of(task, Plugin.of(grading.environment) if grading.environment else None)
    return GradedProblems(drawn_questions(Plugin.of(task), count, config.seed, place), task)


def _read_file(path: Path, grading: Grading) -> GradedProblems:
    """Return the problems of a file. Raises `UsageError`, `ConfigError`."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}") from FileNotFoundError(ENOENT, "", str(path))
    limit = grading.limit or (_QUICK_ROWS if grading.quick else None)
    task = of_a_set(grading.task or "plain")
    trust(task)
    columns, text, want = None, grading.text or "text", grading.want or "want"
    if Plugin.of(task).name == "plain" and (columns := _guess(path, grading)) is not None:
        text, want = columns.text, columns.want
        if grading.task is None and columns.numbers:
            task = "plain:equal=number"
    place = environment_of(task, Plugin.of(grading.environment) if grading.environment else None)
    return GradedProblems(read_questions(path, Plugin.of(task), text, want, place, limit), task, columns)


def _first_rows(path: Path, count: int) -> list[Mapping[str, Any]]:
    """Return the first rows of a file that have named fields."""
    rows = islice(raw_rows(path), count)
    return [cast("dict[str, Any]", row.fields) for row in rows if isinstance(row.fields, dict)]


def _guess(path: Path, grading: Grading) -> GuessedColumns | None:
    """Return the columns of question and answer; `None` for a file without readable rows, which is rejected later."""
    rows = _first_rows(path, _SAMPLED_ROWS)
    return guess_columns(rows, grading.text, grading.want) if rows else None


def _holds_results(source: str) -> bool:
    """Return whether a file holds results that `--out` wrote."""
    if not Path(source).is_file() or Path(source).suffix.lower() != ".jsonl":
        return False
    return any(isinstance(row.get("solved"), bool) and "total_tokens" in row for row in _first_rows(Path(source), 1))


def _write_records(file: TextIO | None, tallies: Mapping[str, EvalCounts]) -> None:
    if file is not None:
        file.writelines(tally.lines(name if len(tallies) > 1 else None) for name, tally in tallies.items())


def _print_notes(source: str, graded: GradedProblems, warnings: list[str], output: Output) -> None:
    for warning in warnings:
        output.progress.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    if graded.columns is not None:
        output.progress.print(_describe(source, graded, graded.columns), style="dim", markup=False, soft_wrap=True)


def _describe(source: str, graded: GradedProblems, columns: GuessedColumns) -> str:
    (why_text, why_want), kind = columns.why, "numbers" if graded.task.endswith("equal=number") else "texts"
    return (
        f"{_amount(source, graded)}: question {columns.text!r} ({why_text}), answer {columns.want!r} "
        f"({why_want}), compared as {kind}"
    )


def _amount(source: str, graded: GradedProblems) -> str:
    count, total = len(graded.problems), sum(1 for _ in raw_rows(Path(source)))
    return f"{count} rows of {source}" if count == total else f"{count} of {total} rows of {source} (more: --limit N)"


def _print_advice(
    source: str, columns: GuessedColumns, tallies: Mapping[str, EvalCounts], task: Plugin, quick: bool, output: Output
) -> None:
    """Print next steps: if no answer is right, and after `--quick`."""
    if not any(tally.solved for tally in tallies.values()):
        _explain_nothing_right(next(iter(tallies.values())), task, output)
    if quick:
        _print_next(source, columns, _best(tallies), output)


def _best(tallies: Mapping[str, EvalCounts]) -> str:
    """Return the planner with the most right answers; among equal planners, the cheapest."""
    return max(tallies, key=lambda name: (tallies[name].solved, -tallies[name].usage.completion))


def _explain_nothing_right(tally: EvalCounts, task: Plugin, output: Output) -> None:
    """Show the extracted answers: if no planner is right, the model usually wraps the answer in a sentence."""
    row = next((tally.records[place] for place in sorted(tally.records) if tally.records[place]["answer"]), None)
    if row is None:
        return
    read = " ".join(as_text(row["answer"]).split())
    shown = f"{read[:77]}…" if len(read) > 78 else read
    lines = [f"No answer is right. Row {row['row'] + 1} wants {row['want']!r}; the answer read is {shown!r}."]
    if task.name == "plain":
        lines.append("The answer is the text after `Answer:`, else the whole text. To ask the model for that line:")
        lines.append(f"  --planner {shlex.quote(_ANSWER_FORM)}")
    for line in lines:
        output.people.print(line, markup=False, soft_wrap=True)


def _print_next(source: str, columns: GuessedColumns, best: str, output: Output) -> None:
    where = [source, "--text", columns.text, "--want", columns.want]
    second = ["--planner", best] if best != "single" else []
    graded = ["plait", "eval", *where, "--planner", "single", *second]
    run = ["plait", "batch", *where, "--planner", best, "--out", f"{Path(source).stem}.out.jsonl"]
    output.people.print("Next commands, with the same options for model and workers:", markup=False)
    for words in (graded, run):
        output.people.print(f"  {shlex.join(words)}", markup=False, soft_wrap=True)
