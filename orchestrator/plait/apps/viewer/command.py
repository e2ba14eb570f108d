"""`plait runs view`: one HTML file with the pictures of a run."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ...core.addresses import allow
from ...core.messages import pluralise
from ...runtime.plugins.loader import Plugins
from ..common.files import write_private
from ..common.journals import Place, journal_of, place_of
from ..common.options import Allow, Json
from ..common.output import opened
from ..trace.read import default_name, read_trace
from .page import page

__all__ = ["view"]


def view(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, or a journal (its last run); the newest run if left out.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file; plait-ID.html by default.")] = None,
    open_it: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open it in a browser; by default if there is a display.")
    ] = None,
    place: Place = None,
    allowed: Allow = None,
    as_json: Json = False,
) -> None:
    """Write the pictures of a run into one HTML file: plan, engines, prefix tree, votes, and a slider through time.

    The file needs no server and loads nothing. It holds the run's prompts and texts.
    """
    allow(*(allowed or ()))
    journal, run_id = journal_of(run, place_of(place))
    with opened(as_json) as output:
        trace = read_trace(journal, Plugins(), run_id)
        path = (out or default_name(trace, ".html")).expanduser()
        written = page(trace).encode()
        write_private(path, written)
        if as_json:
            output.result({"run": trace.run, "file": str(path), "bytes": len(written), "steps": len(trace.steps)})
        else:
            more = (
                f"; {pluralise(trace.others, 'more run')} in the journal: choose by `--from JOURNAL ID`"
                if trace.others
                else ""
            )
            output.people.print(
                f"{path}: run {trace.run}, {pluralise(len(trace.steps), 'step')}{more}", soft_wrap=True, markup=False
            )
        if open_it or (open_it is None and not as_json and _has_display()):
            _show(path)


def _has_display() -> bool:
    if not sys.__stdout__ or not sys.__stdout__.isatty():
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _show(path: Path) -> None:
    webbrowser.open(path.absolute().as_uri())
