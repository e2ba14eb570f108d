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
from ..common.concurrently import for_each
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.options import Common, Json, common_options
from ..common.output import Output, opened
from ..common.progress import counting
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
    actors: Annotated[int, typer.Option(min=1, help="Most actors, with ray-data; a CPU each.")] = 1,
    order: Annotated[
        Order,
        typer.Option(help="`prefix` runs rows with the same beginning one after another; the output keeps its order."),
    ] = "file",
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what an earlier try left and begin anew.")] = False,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Run every row of a file; resumes after a crash."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--out {out} has to end in .jsonl or .parquet: that says which of them is written")
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
