"""`plait try FILE`: some rows of a file of one's own, several planners, one table, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ...core.errors import ConfigError
from ...core.ops import Plugin
from ...core.request import Request
from ...core.values import as_text
from ...runtime.plugins.trust import trust
from ..common.columns import GuessedColumns, guess_columns
from ..common.dataset import question_of
from ..common.options import Common, Json, all_typed, common_options
from ..common.output import Output, opened
from ..common.rows import raw_rows
from .eval import EvalCounts, evaluated, report

__all__ = ["try_file"]

_PLANNERS = ("single", "sample:n=5", "route")
_WITH_TOOLS = "llmcompiler"
_TOLD_FORM = """single:answer.template="{question} End with a line: Answer: X\""""


@common_options
def try_file(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv|jsonl|parquet", help="Rows with questions and answers.")],
    text: Annotated[str, typer.Option(metavar="FIELD", help="The column that is asked; else it is guessed.")] = "",
    want: Annotated[str, typer.Option(metavar="FIELD", help="The column with the right answers; else guessed.")] = "",
    rows: Annotated[int, typer.Option(min=1, help="So many rows are read.")] = 20,
    concurrency: Annotated[int, typer.Option(min=1, help="Rows at the same time.")] = 32,
    planner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:k=v,…]",
            callback=all_typed,
            help="Tried in place of one call, a vote and `route` (with --tools also a plan of calls).",
        ),
    ] = None,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Ask some rows of a file of yours in several ways, and compare."""
    config = common.load()
    given = _read(file, rows)
    columns = guess_columns(given, text, want)
    if request.task is None or request.task.name == "plain":
        options = {} if request.task is None else request.task.options
        plain = {"equal": "number", **options} if columns.numbers else options
        request = request.updated({"task": Plugin(name="plain", options=plain)})
    assert request.task is not None
    trust(request.task)
    questions = [question_of(request.task, row, columns.text, columns.want) for row in given]
    names = list(planner or (*_PLANNERS, *([_WITH_TOOLS] if config.tools or config.mcp else ())))
    with opened(as_json) as output:
        output.progress.print(_told(file, columns, len(given)), markup=False, soft_wrap=True, style="dim")
        tallies = {name: EvalCounts() for name in names}
        asked = {name: request.updated({"planner": name}) for name in names}
        cancelled, start = evaluated(config, questions, asked, concurrency, tallies, output)
        about = {
            "status": "cancelled" if cancelled else "done",
            "task": request.task.name,
            "problems": len(questions),
            "text": columns.text,
            "want": columns.want,
            "start_seconds": start,
        }
        summaries = [{**tally.summary(), **about, "planner": name} for name, tally in tallies.items()]
        report(summaries, tallies, output, as_json, None)
        if not as_json and not cancelled:
            if not any(tally.solved for tally in tallies.values()):
                _nothing_right(next(iter(tallies.values())), request.task, output)
            _go_on(file, columns, _best(tallies), request.task, output)
    if cancelled:
        raise typer.Exit(130)
    if all(tally.failed == tally.n for tally in tallies.values()):
        raise typer.Exit(1)


def _read(file: Path, most: int) -> list[Mapping[str, Any]]:
    """Return the first rows of a file. Raises `ConfigError` for one that cannot be read, or a row that is none."""
    rows: list[Mapping[str, Any]] = []
    try:
        for row in islice(raw_rows(file), most):
            if row.fault or not isinstance(row.fields, dict):
                raise ConfigError(f"{file}, line {row.line}: {row.fault or 'no object with named fields'}")
            rows.append(cast("dict[str, Any]", row.fields))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    if not rows:
        raise ConfigError(f'{file} has no rows: write lines like {{"question": "6 times 7?", "answer": "42"}}, or CSV')
    return rows


def _told(file: Path, columns: GuessedColumns, count: int) -> str:
    (why_text, why_want), kind = columns.why, "numbers" if columns.numbers else "texts"
    asked = f"asked is {columns.text!r} ({why_text})"
    return f"{count} rows of {file}: {asked}, right is {columns.want!r} ({why_want}), compared as {kind}"


def _best(tallies: Mapping[str, EvalCounts]) -> str:
    """Return the planner with most right; of several the cheapest."""
    return max(tallies, key=lambda name: (tallies[name].solved, -tallies[name].total))


def _nothing_right(tally: EvalCounts, task: Plugin, output: Output) -> None:
    """Show what was read as an answer. Mostly the model puts it into a sentence, and all ways look alike."""
    row = next((tally.records[place] for place in sorted(tally.records) if tally.records[place]["answer"]), None)
    if row is None:
        return
    read = " ".join(as_text(row["answer"]).split())
    shown = f"{read[:77]}…" if len(read) > 78 else read
    output.people.print(
        f"Nothing is right. Of row {row['row'] + 1} {row['want']!r} is wanted, and the answer read is {shown!r}.",
        markup=False,
        soft_wrap=True,
    )
    if task.name == "plain":
        output.people.print(
            "The answer is what stands behind `Answer:`, else the whole text. To tell the model so:\n"
            f"  --planner {shlex.quote(_TOLD_FORM)}",
            markup=False,
            soft_wrap=True,
        )


def _go_on(file: Path, columns: GuessedColumns, best: str, task: Plugin, output: Output) -> None:
    spec = "plain:equal=number" if task.name == "plain" and columns.numbers else task.name
    where = ["--text", columns.text, "--want", columns.want]
    all_rows = ["plait", "eval", spec, "--problems", str(file), *where, "--planner", "single"]
    second = ["--planner", best] if best != "single" else []
    asked = ["plait", "batch", str(file), *where, "--planner", best, "--out", f"{file.stem}.out.jsonl"]
    output.people.print("To go on, with the same options for model and workers:", markup=False)
    for words in ([*all_rows, *second], asked):
        output.people.print(f"  {shlex.join(words)}", markup=False, soft_wrap=True)
