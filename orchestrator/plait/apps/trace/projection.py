"""Converts a run's record into its trace: attempts, steps, votes and shared prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...core.graph import context_lines
from ...core.ops import Text
from ...core.record import StepRecord
from ...core.result import Result, Usage
from ...core.task import Task
from ...core.values import as_text
from ...runtime.client.answer import report
from ...runtime.runlog import AttemptRecord, RunRecord, WorkerRecord
from .details import limits, named
from .model import Clock, Trace
from .prefixes import CallContext, prefix_tree
from .votes import votes_of

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
