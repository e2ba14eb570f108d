"""`plait batch IN.jsonl --out OUT`: thousands of requests over the workers, resumable, no row fatal."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ...core.errors import ConfigError, TaskError
from ...core.request import Request
from ...runtime.client.config import Config
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.options import Common, Json, common_options
from ..common.output import Output, opened
from ..common.progress import counting, for_each
from ..common.session import opened_session
from .order import Order, in_order
from .outcome import allowed, outcome
from .rows import BatchRow, InputFields, Log, count_rows, has_answers, other_columns, read_rows, slips, write_output

__all__ = ["batch"]


@common_options
def batch(
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="IN.jsonl|csv",
            help='Lines {"text": …}, or CSV with a column `text`; a row may have options of its own.',
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="OUT.jsonl|parquet", help="Where the outcomes go, in the input's order.")
    ],
    text: Annotated[str, typer.Option(metavar="FIELD", help="The column that is asked.")] = "text",
    id_: Annotated[str, typer.Option("--id", metavar="FIELD", help="The column that names a row.")] = "id",
    want: Annotated[
        str, typer.Option(metavar="FIELD", help="The column with the right answer; the output then has `right`.")
    ] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Rows at the same time; in each actor with ray-data.")] = 64,
    engine: Annotated[
        Literal["here", "ray-data"],
        typer.Option(help="`ray-data` spreads the rows over actors of a Ray cluster, an orchestrator in each."),
    ] = "here",
    actors: Annotated[int, typer.Option(min=1, help="Maximum number of actors with ray-data; one CPU each.")] = 1,
    order: Annotated[
        Order,
        typer.Option(help="`prefix` runs rows with the same beginning one after another; the output keeps its order."),
    ] = "file",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard the results of an earlier try and start again.")
    ] = False,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Run every row of a file; resumes after a crash."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--out {out} has to end in .jsonl or .parquet: the ending selects the format")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("Parquet needs pyarrow: pip install 'plait[batch]', or write .jsonl")
    config = common.load()
    if config.journal is None:
        config = config.model_copy(update={"journal": "off"})  # a row is run again from its beginning
    named = InputFields(text, id_, want)
    count, digest = count_rows(rows, named)
    if engine == "ray-data":
        config = _spreading(config)
    _check(config, rows, request, named)
    header = {"batch": digest, "rows": count, "seed": config.seed}
    if named != InputFields():
        header["columns"] = asdict(named)
    header["request"] = request.model_dump(mode="json", exclude_unset=True)
    began = time.monotonic()
    others = other_columns(rows, named)
    with opened(as_json) as output:
        if unread := [name for name in others if name != named.want]:
            note = f"note: columns that mean nothing here are carried into the output: {', '.join(unread)}"
            output.progress.print(note, style="dim", markup=False, soft_wrap=True)
        for slip in slips(others):
            output.progress.print(f"warning: no option is called {slip}", style="yellow", markup=False, soft_wrap=True)
        log = Log(out.with_name(f"{out.name}.progress"), header, count, fresh)
        if log.is_new and out.exists() and not fresh and has_answers(out):
            log.remove()
            raise ConfigError(f"{out} is there already: give --fresh to replace it, or another --out")
        already = log.done
        try:
            stopped = already < count and (
                _spread(config, rows, count, request, (actors, concurrency), order, log, output, named)
                if engine == "ray-data"
                else run_stoppable(
                    lambda stopper: _run(config, rows, count, request, concurrency, order, log, output, stopper, named)
                )
            )
            finished = log.done == count
            if finished:
                write_output(log, out, others)
        finally:
            log.close()
        if finished:
            log.remove()
        summary = {
            "status": "done" if finished else "cancelled" if stopped else "unfinished",
            "rows": count,
            "done": log.done,
            "resumed": already,
            "failed": log.failed,
            **({"right": log.right} if want else {}),
            "out": str(out) if finished else None,
            "seconds": round(time.monotonic() - began, 3),
        }
        for error, (row, run) in log.errors.items():
            more = f" (more: plait why {run})" if run and config.journal != "off" else ""
            output.progress.print(f"row {row}: {error}{more}", style="yellow", markup=False, soft_wrap=True)
        output.result(summary) if as_json else _show(summary, output)
    if not finished:
        raise typer.Exit(130)
    if log.failed == count:
        raise typer.Exit(1)


def _check(config: Config, rows: Path, request: Request, named: InputFields) -> None:
    """Raise what is wrong with the command's own options, which would make every row invalid."""
    first = next((row for row in read_rows(rows, named) if not row.fault), None)
    if first is None:
        fault = next(read_rows(rows, named)).fault
        raise ConfigError(f"{rows} has no row that can be asked: row 1 has {fault}")
    allowed(config, first.fields["text"], request)


async def _run(
    config: Config,
    path: Path,
    count: int,
    request: Request,
    concurrency: int,
    order: Order,
    log: Log,
    output: Output,
    stopper: Stopper,
    named: InputFields,
) -> bool:
    """Run the rows that have no outcome yet; return whether the user gave up."""
    try:
        async with opened_session(config, output, stopper) as session:
            text = next((row.fields["text"] for row in read_rows(path, named) if not row.fault), "")
            with contextlib.suppress(TaskError):  # the first row's task is invalid: its row reports it
                log.claim(await session.orchestrator.provenance(request, text=text))
            with _progress(output, count, log) as advance:

                async def solve(row: BatchRow) -> None:
                    ended = await outcome(session.orchestrator, row, request, stopper, named.want)
                    if ended is not None:
                        log.add(ended)
                        advance()

                missing = in_order(path, order, lambda number: not log.has(number), named)
                await for_each(missing, solve, concurrency, stopper)
            return stopper.requested
    except CommandInterrupted:
        return True


def _spreading(config: Config) -> Config:
    from .ray_data import check

    return check(config)


def _spread(
    config: Config,
    path: Path,
    count: int,
    request: Request,
    width: tuple[int, int],
    order: Order,
    log: Log,
    output: Output,
    named: InputFields,
) -> bool:
    """Run the rows that have no outcome yet on the cluster; return whether the user gave up."""
    from .ray_data import spread

    missing = in_order(path, order, lambda number: not log.has(number), named)
    try:
        with _progress(output, count, log) as advance:
            for ended in spread(missing, config, request, *width, named.want):
                log.add(ended)
                advance()
    except KeyboardInterrupt:
        return True
    return False


def _progress(output: Output, total: int, log: Log) -> AbstractContextManager[Callable[[], None]]:
    """Show how far it is and the time left."""
    began, already = time.monotonic(), log.done
    if already:
        output.progress.print(f"{already} of {total} rows are there from an earlier try", markup=False)

    def line() -> str:
        rate = (log.done - already) / max(1e-9, time.monotonic() - began)
        left = (total - log.done) / rate if rate else 0.0
        return f"{log.done} of {total}, {log.failed} failed, {left:.0f} s left"

    return counting(output, total, lambda: log.done, lambda: f"rows, {log.failed} failed", line)


def _show(summary: dict[str, Any], output: Output) -> None:
    console = output.people
    right = f", {summary['right']} right" if "right" in summary else ""
    resumed = f", {summary['resumed']} of them from an earlier try" if summary["resumed"] else ""
    console.print(
        f"{summary['done']} of {summary['rows']} rows{resumed}; {summary['failed']} failed{right}", markup=False
    )
    if summary["out"]:
        console.print(f"{summary['out']} ({summary['seconds']:.1f} s)", markup=False, soft_wrap=True)
    else:
        console.print("run the same command again to continue", markup=False)
