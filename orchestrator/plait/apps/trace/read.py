"""Read a run's trace from a journal: its events go through a new machine, as in `plait runs replay`.

No worker starts. If the file and this version of the machine disagree, the notes of the trace report it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from ...core.errors import ConfigError
from ...core.events import Action, Event, Finish, Submitted
from ...core.interfaces import PluginRegistry
from ...machine import Machine
from ...runtime.journal.journal import Journal
from ...runtime.journal.location import Location
from ...runtime.journal.replay import history
from ...runtime.journal.tables import Header
from ...runtime.runlog import RunLog
from ...runtime.telemetry import model_name
from .model import Clock, Trace
from .projection import trace_of

Watch = Callable[[Event, Machine, Sequence[Action]], None]
"""Receives each event, the machine after it and the resulting actions, like a driver's watchers."""


def read_trace(path: Location | str, plugins: PluginRegistry, run: str | None = None) -> Trace:
    """Return the trace of a run; default: the run submitted last.

    Raises `ConfigError` for an unreadable file and for an unknown run.
    """
    journal = Journal(path)
    newest = journal.newest(most=1)
    if not newest:
        raise ConfigError(f"{path} holds no run: nothing was submitted while it was written")
    run = run or newest[0].run
    log = RunLog([run], keep="texts")
    clocks: list[Clock] = []
    notes: list[str] = []
    header: Header | None = None
    now = 0.0
    try:
        for moment in history(path, plugins, run):
            if moment.header is not header:
                header = moment.header
                clocks.append(clock_of(header, now if header.resumes is not None else moment.event.at))
            now = moment.machine.now
            log.take(moment.event, moment.machine, moment.actions)
            if moment.differs and not notes:
                notes.append(
                    f"from event {moment.seq} of the journal on this version of plait decides otherwise than the one "
                    "that wrote it; what is shown is this version's view (`plait runs replay` shows the differences)"
                )
            if end := _end_of(run, moment.actions):
                if moment.differs and isinstance(moment.event, Submitted) and end.failure is not None:
                    # It ran in the writing process, but this process rejects it, such as a class that is not allowed.
                    raise ConfigError(f"run {run} cannot be shown: {end.failure.message}")
                break
    except ConfigError:
        if run not in log.runs or not log.runs[run].steps:
            raise
        notes.append("the journal is damaged: what comes after its last readable event is missing")
    except Exception as error:  # this version's machine rejects the event: show the earlier part
        notes.append(
            f"the journal cannot be replayed to its end ({type(error).__name__}: {error}): the rest is missing"
        )
    record = log.runs.get(run)
    if record is None or header is None:
        raise ConfigError(f"{path} cannot be replayed up to run {run!r}: " + "; ".join(notes or ["it is missing"]))
    record.now = now  # also for an active run: its trace ends with the last event
    trace = trace_of(record, log.workers.values(), clocks, notes)
    trace.model, trace.server = _model(header, trace)
    trace.plait = header.plait
    trace.others = journal.count() - 1
    return trace


def _end_of(run: str, actions: Sequence[Action]) -> Finish | None:
    return next((action for action in actions if isinstance(action, Finish) and action.run == run), None)


def _model(header: Header, trace: Trace) -> tuple[str, str | None]:
    """Return the name of a session's model, and the address of the model's server, if any."""
    meta, settings = header.meta, header.meta.get("settings")
    worker, given = str(meta.get("worker") or "engine"), settings if isinstance(settings, dict) else {}
    named = model_name(worker, str(meta.get("model") or ""), "model" in given)
    told = (model for host in trace.hosts if "think" in host.serves for model in host.models)
    return named or next(told, ""), str(given["base_url"]) if worker == "http" and "base_url" in given else None


def clock_of(header: Header, at: float) -> Clock:
    """Return the relation of a session's events to the wall clock; `at` is the session's start on the events' clock.

    Events carry the monotonic time of the process that wrote them. A session's header pairs one reading of that clock
    with the wall clock (`meta.clock`). A session that resumes a run has the clock of the run's machine, which was
    stopped in between; the start of the session then counts. A header without `meta.clock` has only its time of
    writing.
    """
    clock = header.meta.get("clock")
    if isinstance(clock, dict):
        unix, read = clock.get("unix"), clock.get("at")
        if isinstance(unix, int | float) and isinstance(read, int | float):
            return Clock(at, unix - (at if header.resumes is not None else read), exact=True)
    return Clock(at, datetime.fromisoformat(header.created).timestamp() - at, exact=False)


def default_name(trace: Trace, suffix: str) -> Path:
    """Return the default name of a trace's output file."""
    return Path(f"plait-{trace.run}{suffix}")
