"""`plait batch IN.jsonl --out OUT`: thousands of requests over the workers, resumable, no row fatal.

`plait batch --grade SOURCE`, in short `plait eval SOURCE`, counts right answers and compares planners: problems of a
task, a file with answers, or saved results; each planner on all, and a comparison.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from errno import ENOENT
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from ...core.errors import ConfigError, TaskError, UsageError
from ...core.ops import Plugin
from ...core.request import Request
from ...core.values import as_text
from ...runtime.client.config import Config
from ...runtime.plugins.spec import trust
from ..commands.eval import EvalCounts, compare, evaluated, report, requests_of, writable
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
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.options import Common, Json, all_typed, common_options, plugin_option
from ..common.output import Output, opened
from ..common.progress import counting, for_each
from ..common.session import choose_model, opened_session
from .rows import (
    BatchRow,
    InputFields,
    Log,
    Order,
    allowed,
    count_rows,
    has_answers,
    in_order,
    other_columns,
    outcome,
    read_rows,
    slips,
    write_output,
)  # fmt: skip

_DRAWN_PROBLEMS = 100
_QUICK_ROWS = 20
_QUICK_PLANNERS = ("single", "sample:n=5", "adaptive")
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
        bool, typer.Option("--quick", help="20 rows by `single`, `sample:n=5` and `adaptive`, unless others are named.")
    ] = False
    limit: Annotated[int | None, typer.Option(min=1, help="Number of rows; all of a file or 100 drawn by default.")] = (
        None
    )
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent rows (with --actors: in each).")] = 64
    task: Annotated[
        str | None,
        plugin_option("task", "Meaning of a row's text; `plain` by default, with numbers compared as numbers."),
    ] = None
    planner: Annotated[
        list[str] | None,
        plugin_option(
            "planner", "Planner that splits requests; several are graded and compared with the first.", several=True
        ),
    ] = None
    environment: Annotated[
        str | None,
        plugin_option(
            "environment",
            "Environment that runs and grades answers (`code:sandbox=process`); the task's by default.",
        ),
    ] = None
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


def run_graded(sources: Sequence[str], grading: Grading, config: Config, request: Request, as_json: bool) -> None:
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
        quick = grading.quick and not grading.planner
        cancelled, start = evaluated(config, graded.problems, asked, grading.concurrency, tallies, output, quick)
        tallies = {name: tally for name, tally in tallies.items() if tally.records or cancelled or not quick}
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
    return requests_of(grading.planner or (usual if grading.quick else [""]), request, config.planner.name)


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
        _explain_nothing_right(tallies, task, output)
    elif quick:
        _print_next(source, columns, _best(tallies), output)


def _best(tallies: Mapping[str, EvalCounts]) -> str:
    """Return the planner with the most right answers; among equal planners, the cheapest."""
    return max(tallies, key=lambda name: (tallies[name].solved, -tallies[name].usage.completion))


def _explain_nothing_right(tallies: Mapping[str, EvalCounts], task: Plugin, output: Output) -> None:
    """Show the extracted answers: if no planner is right, the model usually wraps the answer in a sentence."""
    records = next(iter(tallies.values())).records
    row = next((records[place] for place in sorted(records) if records[place]["answer"]), None)
    if row is None:
        return
    read = " ".join(as_text(row["answer"]).split())
    shown = f"{read[:77]}…" if len(read) > 78 else read
    lines = [f"No answer is right. Row {row['row'] + 1} wants {row['want']!r}; the answer read is {shown!r}."]
    if task.name == "plain" and _ANSWER_FORM not in tallies:
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


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        callback=all_typed,
        help="File of rows (JSON lines, CSV, Parquet); with grades also a task that draws problems (countdown, "
        "bash-sql, humaneval, bfcl:CATEGORY, reasoning-gym:FAMILY, FILE.py:Class) or saved results to compare.",
    ),
]


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The rows and settings of a batch."""

    config: Config
    path: Path
    rows: int
    request: Request
    named: InputFields
    order: Order
    concurrency: int
    actors: int | None
    """Maximum number of Ray actors; `None` runs the rows in this process."""

    def missing(self, log: Log) -> Iterator[BatchRow]:
        """Return the rows that have no outcome yet."""
        return in_order(self.path, self.order, lambda number: number < self.rows and not log.has(number), self.named)


@common_options
def batch(
    sources: Sources,
    id_: Annotated[str, typer.Option("--id", metavar="FIELD", help="Column with a row's id.")] = "id",
    grade: Annotated[
        bool, typer.Option("--grade", help="Count right answers and costs; implied by several planners or a task.")
    ] = False,
    actors: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of actors of a Ray cluster (Ray Data), one CPU each.")
    ] = None,
    order: Annotated[
        Order, typer.Option(help="`prefix` runs rows with the same beginning one after another.")
    ] = "file",
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the results of an earlier try.")] = False,
    as_json: Json = False,
    *,
    grading: Grading,
    request: Request,
    common: Common,
) -> None:
    """Run every row of a file; resumes after a crash. With --grade, count right answers and compare planners."""
    planners = grading.planner or []
    if grade or grading.quick or len(planners) > 1 or len(sources) > 1 or not is_file(sources[0]):
        if actors is not None or fresh or order != "file" or id_ != "id":
            raise UsageError("--actors, --fresh, --order and --id are for rows without grades: leave them out")
        run_graded(sources, grading, common.load(), request, as_json)
        return
    if grading.environment is not None or grading.plot is not None:
        raise UsageError("--environment and --plot need grades: add --grade")
    if grading.out is None:
        raise UsageError("--out is missing: name the output file, OUT.jsonl or OUT.parquet")
    request = request.updated({"task": grading.task or "plain", **({"planner": planners[0]} if planners else {})})
    trust(request.task, request.planner)
    path, named = Path(sources[0]), InputFields(grading.text or "text", id_, grading.want)
    count, digest = count_rows(path, named)
    count = min(count, grading.limit or count)
    job = BatchJob(common.load(), path, count, request, named, order, grading.concurrency, actors)
    _run_file(job, digest, grading.out, fresh, as_json)


@common_options
def evaluate(sources: Sources, as_json: Json = False, *, grading: Grading, request: Request, common: Common) -> None:
    """Count right answers and costs of planners: the short form of `plait batch --grade`."""
    run_graded(sources, grading, common.load(), request, as_json)


def _run_file(job: BatchJob, digest: str, out: Path, fresh: bool, as_json: bool) -> None:
    """Run the rows of a file that have no outcome yet, and write the output when all have one."""
    job = _checked(job, out)
    header = _header(job, digest)
    began = time.monotonic()
    others = other_columns(job.path, job.named)
    with opened(as_json) as output:
        _warn_of_columns(job.named, others, output)
        log = Log(out.with_name(f"{out.name}.progress"), header, job.rows, fresh)
        if log.is_new and out.exists() and not fresh and has_answers(out):
            log.remove()
            raise ConfigError(f"{out} exists already: give --fresh to replace it, or another --out")
        already = log.done
        try:
            stopped = already < job.rows and (
                run_stoppable(lambda stopper: _run(job, log, output, stopper))
                if job.actors is None
                else _spread(job, log, output)
            )
            finished = log.done == job.rows
            if finished:
                write_output(log, out, others)
        finally:
            log.close()
        if finished:
            log.remove()
        summary = {
            "status": "done" if finished else "cancelled" if stopped else "unfinished",
            "resumed": already,
            "out": str(out) if finished else None,
            "seconds": round(time.monotonic() - began, 3),
            **_counts(job, log),
        }
        _print_errors(job, log, output)
        output.report(summary, *_lines(summary))
    if not finished:
        raise typer.Exit(130)
    if log.failed == job.rows:
        raise typer.Exit(1)


def _print_errors(job: BatchJob, log: Log, output: Output) -> None:
    for error, (row, run) in log.errors.items():
        more = f" (more: plait why {run})" if run and job.config.journal != "off" else ""
        output.progress.print(f"row {row}: {error}{more}", style="yellow", markup=False, soft_wrap=True)


def _header(job: BatchJob, digest: str) -> dict[str, Any]:
    """Return the header of a batch's log, which identifies the batch."""
    columns = {} if job.named == InputFields() else {"columns": asdict(job.named)}
    request = job.request.model_dump(mode="json", exclude_unset=True)
    return {"batch": digest, "rows": job.rows, "seed": job.config.seed, **columns, "request": request}


def _counts(job: BatchJob, log: Log) -> dict[str, int]:
    right = {"right": log.right} if job.named.want else {}
    return {"rows": job.rows, "done": log.done, "failed": log.failed, **right}


def _checked(job: BatchJob, out: Path) -> BatchJob:
    """Return a batch with its effective settings. Raises `ConfigError`, also for settings that would make every row
    invalid."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--out {out} has to end in .jsonl or .parquet: the ending selects the format")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("Parquet needs pyarrow: pip install 'plait[batch]', or write .jsonl")
    config = choose_model(job.config, job.request.task.name)
    if config.journal is None:
        config = config.model_copy(update={"journal": "off"})  # a row is run again from its beginning
    if job.actors is not None:
        from .ray_data import check

        config = check(config)
    first = next((row for row in read_rows(job.path, job.named) if not row.fault), None)
    if first is None:
        fault = next(read_rows(job.path, job.named)).fault
        raise ConfigError(f"{job.path} has no row that can be run: row 1 has {fault}")
    allowed(config, first.fields["text"], job.request)
    return replace(job, config=config)


def _warn_of_columns(named: InputFields, others: Sequence[str], output: Output) -> None:
    if unread := [name for name in others if name != named.want]:
        note = f"note: columns without a meaning here are copied to the output: {', '.join(unread)}"
        output.progress.print(note, style="dim", markup=False, soft_wrap=True)
    for slip in slips(others):
        output.progress.print(f"warning: no option is called {slip}", style="yellow", markup=False, soft_wrap=True)


async def _run(job: BatchJob, log: Log, output: Output, stopper: Stopper) -> bool:
    """Run the rows that have no outcome yet; return whether the user cancelled."""
    try:
        async with opened_session(job.config, output, stopper) as session:
            text = next((row.fields["text"] for row in read_rows(job.path, job.named) if not row.fault), "")
            with contextlib.suppress(TaskError):  # the first row's task is invalid: its row reports it
                log.claim(await session.orchestrator.provenance(job.request, text=text))
            with _progress(output, job.rows, log) as advance:

                async def solve(row: BatchRow) -> None:
                    ended = await outcome(session.orchestrator, row, job.request, stopper, job.named.want)
                    if ended is not None:
                        log.add(ended)
                        advance()

                await for_each(job.missing(log), solve, job.concurrency, stopper)
            return stopper.requested
    except CommandInterrupted:
        return True


def _spread(job: BatchJob, log: Log, output: Output) -> bool:
    """Run the rows that have no outcome yet on the cluster; return whether the user cancelled."""
    from .ray_data import spread

    try:
        with _progress(output, job.rows, log) as advance:
            width = job.actors or 1, job.concurrency
            for ended in spread(job.missing(log), job.config, job.request, *width, job.named.want):
                log.add(ended)
                advance()
    except KeyboardInterrupt:
        return True
    return False


def _progress(output: Output, total: int, log: Log) -> AbstractContextManager[Callable[[], None]]:
    """Show the progress and the remaining time."""
    began, already = time.monotonic(), log.done
    if already:
        output.progress.print(f"{already} of {total} rows are there from an earlier try", markup=False)

    def line() -> str:
        rate = (log.done - already) / max(1e-9, time.monotonic() - began)
        left = (total - log.done) / rate if rate else 0.0
        return f"{log.done} of {total}, {log.failed} failed, {left:.0f} s left"

    return counting(output, total, lambda: log.done, lambda: f"rows, {log.failed} failed", line)


def _lines(summary: dict[str, Any]) -> list[str]:
    right = f", {summary['right']} right" if "right" in summary else ""
    resumed = f", {summary['resumed']} of them from an earlier try" if summary["resumed"] else ""
    written = (
        f"{summary['out']} ({summary['seconds']:.1f} s)" if summary["out"] else "run the same command again to continue"
    )
    return [f"{summary['done']} of {summary['rows']} rows{resumed}; {summary['failed']} failed{right}", written]
