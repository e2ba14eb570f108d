"""Check whether a journal names Python code that was not allowed, before a replay or a resume."""

from __future__ import annotations

from ...core.events import Expanded, Submitted
from ..plugins.spec import refuse
from .journal import Journal
from .location import Location


def refuse_names(path: Location, run: str | None = None) -> None:
    """Raise `PluginError` for a name `pkg.mod:name` that is not allowed, in all runs of a journal or in one run."""
    journal = Journal(path)
    for row in journal.rows() if run is None else journal.rows_of(run):
        if row.kind not in ("submitted", "expanded") or run not in (None, row.run):
            continue
        event = row.load()
        if isinstance(event, Submitted):
            refuse(path.name, event.request.task, *event.request.policies, event.plan)
        elif isinstance(event, Expanded):
            refuse(path.name, event.patch)
