"""Read a run's trace from a journal: its events go through a new machine, as in `plait runs replay`, and its record
becomes attempts, steps, votes and shared prefixes. No worker starts. If the file and this version of the machine
disagree, the notes of the trace report it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ...core.errors import ConfigError
from ...core.events import Action, Event, Finish, Submitted
from ...core.interfaces import PluginRegistry
from ...core.ops import Text
from ...core.record import StepRecord
from ...core.result import Result, Usage
from ...core.task import Task
from ...core.values import as_text
from ...machine import Machine
from ...runtime.client.answer import report
from ...runtime.journal.journal import Journal
from ...runtime.journal.location import Location
from ...runtime.journal.replay import history
from ...runtime.journal.tables import Header
from ...runtime.runlog import AttemptRecord, RunLog, RunRecord, WorkerRecord
from ...runtime.telemetry import model_name
from ..common.graph import context_lines
from .model import Clock, Trace, limits, named
from .prefixes import CallContext, prefix_tree
from .votes import votes_of

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


UNFINISHED = "the journal ends before the run did: it was cut short, or it is still running"
"""The note of a trace whose journal does not tell its run's end."""


def trace_of(
    run: RunRecord, workers: Iterable[WorkerRecord], clocks: Sequence[Clock], notes: Sequence[str] = ()
) -> Trace:
    """Return the trace of a run with kept texts; times are in seconds after submission.

    Args:
        run: the record, in its present state.
        workers: the workers of the run.
        clocks: the relation of the events' times to the wall clock, at least one.
        notes: further notes for the reader.
    """
    began, request, finish = run.began, run.request, run.finish
    trace = Trace(
        run=run.id,
        text=request.text,
        task=named(request.task),
        planner=named(request.planner),
        policies=tuple(map(named, request.policies)),
        budget=limits(request.budget),
        seed=request.seed,
        clocks=tuple(Clock(clock.at - began, clock.zero + began, clock.exact) for clock in clocks),
        seconds=run.seconds,
        notes=list(notes),
    )
    if finish is not None:
        trace.status, trace.failure, trace.usage = finish.status, finish.failure, finish.usage
        trace.critical_path_tokens = finish.critical_path_tokens
        trace.answer = "" if finish.result is None else as_text(finish.result.value)
    else:
        trace.usage = sum((attempt.usage for attempt in run.attempts), Usage())
        trace.notes.append(UNFINISHED)
    if len(clocks) > 1:
        trace.notes.append(f"it was interrupted and resumed: {len(clocks)} sessions, whose pauses are left out")
    if not all(clock.exact for clock in clocks):
        trace.notes.append("the journal tells wall-clock time to the second only")
    if run.records is None:
        return trace
    task = run.records.task
    trace.steps, trace.attempts = _steps(run), run.attempts
    if finish is not None:
        trace.verified = None if finish.result is None else _verified(task, finish.result)
        trace.waited_for = tuple(step.step for step in report(run).waited_for)
    trace.output = run.output
    trace.hosts = [_worker(worker, began, trace.seconds) for worker in workers]
    _assign_lanes(trace.attempts)
    trace.votes = votes_of(trace.steps, task)
    trace.segments, trace.unit = prefix_tree(_contexts(run, trace.steps))
    return trace


def _steps(run: RunRecord) -> list[StepRecord]:
    """Return all steps, including cancelled ones, with the time of entry and the generated text."""
    last = {attempt.step: attempt for attempt in run.attempts}
    steps = list(run.steps)
    for step in steps:
        step.entered = run.entered.get(step.step, 0.0)
        attempt = last.get(step.step)
        result = attempt.result if attempt is not None else None
        if step.value is not None:
            step.text = as_text(step.value)
        elif result is not None:  # of a step that was given up
            step.text = "" if result.value is None else as_text(result.value)
            step.logprob, step.signals = result.logprob, result.signals
        if not step.text and attempt is not None:
            step.text = attempt.text
    return steps


def _contexts(run: RunRecord, steps: Sequence[StepRecord]) -> list[CallContext]:
    """Return the engine's input and output of each started model call, in order of their starts."""
    known, line_of = {step.step for step in steps}, context_lines(steps)
    told: dict[str, AttemptRecord] = {}
    for attempt in run.attempts:  # for a retried step: all attempts have the same context
        if attempt.read or not told.get(attempt.step, attempt).read:
            told[attempt.step] = attempt
    made: list[CallContext] = []
    for attempt in sorted(told.values(), key=lambda attempt: (attempt.start, attempt.id)):
        op = attempt.op
        if op.kind == "think" and attempt.step in known:
            begin = (Text(text=op.begin),) if op.begin else ()
            prompt = (*(part for part in op.parts if part.kind != "ref"), *begin)
            line = frozenset(line_of(attempt.step))
            made.append(CallContext(attempt.step, prompt, attempt.result, attempt.text, attempt.usage, line))
    return made


def _verified(task: Task, result: Result) -> bool | None:
    try:
        value = result.value
        answer = task.extract(value) if isinstance(value, str) else value
        return None if answer is None else task.verify(answer)
    except Exception:  # a third-party task may fail on unexpected input: then the result is unknown
        return None


def _worker(there: WorkerRecord, began: float, seconds: float) -> WorkerRecord:
    ups = [(start - began, None if end is None else end - began) for start, end in there.ups]
    shown = [(max(0.0, start), end) for start, end in ups if end is None or end > 0]
    return replace(there, ups=[span for span in shown if span[0] <= seconds])


def _assign_lanes(attempts: Sequence[AttemptRecord]) -> None:
    """Assign each attempt the lowest slot of its worker that is free for the attempt's whole duration."""
    free_from: dict[str, list[float]] = {}
    for attempt in sorted(attempts, key=lambda attempt: (attempt.start, attempt.id)):
        lanes = free_from.setdefault(attempt.worker, [])
        end = attempt.end if attempt.end is not None else float("inf")
        attempt.lane = next((lane for lane, until in enumerate(lanes) if until <= attempt.start), len(lanes))
        lanes[attempt.lane : attempt.lane + 1] = [end]
