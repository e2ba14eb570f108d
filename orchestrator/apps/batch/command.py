"""`plait batch IN.jsonl --out OUT`: thousands of requests over the workers, resumable, no row fatal."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.errors import ConfigError, PlaitError, TaskError, WorkerError
from ...runtime.client.answer import Answer
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.plugins.trust import untrusted
from ..commands.plan import asked
from ..common.concurrently import for_each
from ..common.interrupt import Interrupted, Stopper, run_stoppable
from ..common.options import Common, Json, RequestOptions, common_options
from ..common.output import Output, opened
from ..common.progress import counting
from ..common.session import opened_session
from .order import Order, in_order
from .rows import FIELDS, Log, Row, carried, count_rows, other_columns, read_rows, write_output

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
    concurrency: Annotated[int, typer.Option(min=1, help="Rows at the same time.")] = 64,
    order: Annotated[
        Order,
        typer.Option(help="`prefix` runs rows with the same beginning one after another; the output keeps its order."),
    ] = "file",
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what an earlier try left and begin anew.")] = False,
    as_json: Json = False,
    *,
    request: RequestOptions,
    common: Common,
) -> None:
    """Run every row of a file; killed, it goes on where it was."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--out {out} has to end in .jsonl or .parquet: that says which of them is written")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("Parquet needs pyarrow: pip install 'plait[batch]', or write .jsonl")
    config = common.load()
    if config.journal is None:
        config = config.model_copy(update={"journal": "off"})  # a row is run again from its beginning
    count, digest = count_rows(rows)
    options = {name: value for name, value in request.options().items() if value is not None}
    _check(config, rows, options)
    header = {"batch": digest, "rows": count, "model": config.model, "seed": config.seed, "options": options}
    began = time.monotonic()
    others = other_columns(rows)
    with opened(as_json) as output:
        if others:
            said = f"note: columns that mean nothing here are carried into the output: {', '.join(others)}"
            output.progress.print(said, style="dim", markup=False, soft_wrap=True)
        log = Log(out.with_name(f"{out.name}.progress"), header, count, fresh)
        if log.is_new and out.exists() and not fresh:
            log.remove()
            raise ConfigError(f"{out} is there already: give --fresh to write it anew, or another --out")
        found = log.done
        try:
            stopped = found < count and run_stoppable(
                lambda stopper: _run(config, rows, count, options, concurrency, order, log, output, stopper)
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
            "resumed": found,
            "failed": log.failed,
            "out": str(out) if finished else None,
            "seconds": round(time.monotonic() - began, 3),
        }
        output.result(summary) if as_json else _show(summary, output)
    if not finished:
        raise typer.Exit(130)
    if log.failed == count:
        raise typer.Exit(1)


def _check(config: Config, rows: Path, options: dict[str, Any]) -> None:
    """Raise what is wrong with the command's own options, which would make every row invalid."""
    text = next((row.fields["text"] for row in read_rows(rows) if not row.fault), "")
    with contextlib.suppress(TaskError):  # that is about the row
        asked(config, text, **options)


async def _run(
    config: Config,
    path: Path,
    count: int,
    options: dict[str, Any],
    concurrency: int,
    order: Order,
    log: Log,
    output: Output,
    stopper: Stopper,
) -> bool:
    """Run the rows that have no outcome yet; return whether the user gave up."""
    try:
        async with opened_session(config, output, stopper) as session:
            with _progress(output, count, log) as advance:

                async def solve(row: Row) -> None:
                    outcome = await _outcome(session.orchestrator, row, options, stopper)
                    if outcome is not None:
                        log.add(outcome)
                        advance()

                missing = in_order(path, order, lambda number: not log.has(number))
                await for_each(missing, solve, concurrency, stopper)
            return stopper.requested
    except Interrupted:
        return True


async def _outcome(
    orchestrator: AsyncOrchestrator, row: Row, options: dict[str, Any], stopper: Stopper
) -> dict[str, Any] | None:
    """Run one row and return its outcome; `None` if the user gave it up."""
    fields = dict(row.fields)
    name = fields.pop("id", None)
    head: dict[str, Any] = {"row": row.number, "id": None if name is None else str(name)}
    if rest := {carried(key): value for key, value in fields.items() if key not in FIELDS}:
        head["carried"] = rest
    if row.fault:
        return {**head, "status": "invalid", "error": row.fault}
    try:
        own = {key: value for key, value in fields.items() if key in FIELDS and key != "text"}
        with untrusted():
            handle = await orchestrator.submit(fields["text"], share="batch", **{**options, **own})
    except WorkerError:  # nothing can be run any more: that is no row's fault
        raise
    except (PlaitError, ValueError, TypeError) as error:
        return {**head, "status": "invalid", "error": str(error)}
    revoke = stopper.then(handle.cancel)
    try:
        answer = await handle
    finally:
        revoke()
    return None if answer.status == "cancelled" else {**head, **_columns(answer)}


def _columns(answer: Answer) -> dict[str, Any]:
    usage, value = answer.usage, answer.value
    return {
        "status": answer.status,
        "answer": answer.answer,
        "text": value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        "verified": answer.verified,
        "error": None if answer.failure is None else f"{answer.failure.kind}: {answer.failure.message}",
        "why": answer.why,
        "run": answer.run,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "cancelled_tokens": usage.cancelled,
        "critical_path_tokens": answer.critical_path_tokens,
        "elapsed_seconds": round(answer.seconds, 4),
    }  # fmt: skip


def _progress(output: Output, total: int, log: Log) -> AbstractContextManager[Callable[[], None]]:
    """Show how far it is and the time left."""
    began, found = time.monotonic(), log.done
    if found:
        output.progress.print(f"{found} of {total} rows are there from an earlier try", markup=False)

    def line() -> str:
        rate = (log.done - found) / max(1e-9, time.monotonic() - began)
        left = (total - log.done) / rate if rate else 0.0
        return f"{log.done} of {total}, {log.failed} failed, {left:.0f} s left"

    return counting(output, total, lambda: log.done, lambda: f"rows, {log.failed} failed", line)


def _show(summary: dict[str, Any], output: Output) -> None:
    console = output.people
    resumed = f", {summary['resumed']} of them from an earlier try" if summary["resumed"] else ""
    console.print(f"{summary['done']} of {summary['rows']} rows{resumed}; {summary['failed']} failed", markup=False)
    if summary["out"]:
        console.print(f"{summary['out']} ({summary['seconds']:.1f} s)", markup=False, soft_wrap=True)
    else:
        console.print("run the same command again to go on", markup=False)
