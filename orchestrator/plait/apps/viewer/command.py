"""`plait runs view`: a finished run as a page with diagrams, or in the formats of other tools."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from ...core.addresses import allow
from ...core.errors import UsageError
from ...core.messages import pluralise
from ...runtime.plugins.loader import Plugins
from ..common.files import write_private
from ..common.journals import Place, journal_of, place_of
from ..common.options import Allow, Json
from ..common.output import opened
from ..trace.model import Trace, record
from ..trace.read import default_name, read_trace
from ..trace.spans import export_spans
from .page import page

Form = Literal["html", "otel", "json"]
_ENDINGS = {"html": ".html", "otel": ".otel.jsonl", "json": ".json"}
"""Ends of the default names, where they are not `.FORMAT.json`."""


def view(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, or a journal (its last run); the newest run if left out.")
    ] = "",
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            help="html: a page with its pictures; otel: OpenTelemetry spans; json: the whole record.",
        ),
    ] = "html",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output file; plait-ID with the format's ending by default.")
    ] = None,
    open_it: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open it in a browser; a page by default if there is a display."),
    ] = None,
    send: Annotated[
        bool, typer.Option("--send", help="Send the spans to the address in OTEL_… instead of a file (otel).")
    ] = False,
    texts: Annotated[
        bool | None, typer.Option("--texts/--no-texts", help="Prompts, texts and arguments (otel).")
    ] = None,
    place: Place = None,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Write a run as one HTML file with its plan, engines, prefix tree, votes and a slider through time, or as a trace.

    The page needs no server and loads nothing. It holds the run's prompts and texts.
    """
    _refuse_options(form, out, send, texts)
    allow(*(allowed or ()))
    journal, run_id = journal_of(run, place_of(place))
    with opened(as_json) as output:
        made = read_trace(journal, Plugins(), run_id)
        path = (out or default_name(made, _ENDINGS.get(form, f".{form}.json"))).expanduser()
        if form == "otel":
            count = export_spans(journal, made, texts is True, None if send else path)
        else:
            content, count = _WRITERS[form](made)
            write_private(path, content.encode(errors="replace"))
        what = "spans" if form == "otel" else "steps"
        size = path.stat().st_size if path.is_file() else 0
        others = f"; {pluralise(made.others, 'more run')} in the journal: choose by `--from JOURNAL ID`"
        line = f"{'sent' if send else path}: run {made.run}, {pluralise(count, what[:-1])}" + others * bool(made.others)
        output.report({"run": made.run, "file": None if send else str(path), "bytes": size, what: count}, line)
        if open_it or (open_it is None and form == "html" and not as_json and _has_display()):
            webbrowser.open(path.absolute().as_uri())


def _refuse_options(form: Form, out: Path | None, send: bool, texts: bool | None) -> None:
    """Raise `UsageError` for options that the format has no use for."""
    if texts is not None and form != "otel":
        raise UsageError("--texts and --no-texts go with --format otel: html and json have texts, others none")
    if send and (form != "otel" or out is not None):
        raise UsageError("--send goes with --format otel and without --out: spans are sent or written")


_WRITERS: dict[str, Callable[[Trace], tuple[str, int]]] = {
    "html": lambda made: (page(made), len(made.steps)),
    "json": lambda made: (json.dumps(record(made), ensure_ascii=True), len(made.steps)),
}
"""By format: a function that returns the file's content and its number of entries."""


def _has_display() -> bool:
    if not sys.__stdout__ or not sys.__stdout__.isatty():
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
