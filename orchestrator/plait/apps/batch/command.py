"""`plait batch IN.jsonl --out OUT`: thousands of requests over the workers, resumable, no row fatal.

`plait batch --grade SOURCE`, in short `plait eval SOURCE`, counts right answers and compares planners.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.errors import ConfigError, TaskError, UsageError
from ...core.request import Request
from ...runtime.client.config import Config
from ...runtime.plugins.spec import trust
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.options import Common, Json, all_typed, common_options
from ..common.output import Output, opened
from ..common.progress import counting, for_each
from ..common.session import choose_model, opened_session
from .graded import Grading, grade as run_graded, is_file
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
    """What a batch runs, and how."""

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
