"""Records one run's trace while a machine takes its events: who ran what when, and at the end what every step was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.events import Action, Event, Finish, Submitted
from ...core.ops import Text
from ...core.record import StepRecord
from ...core.result import Result, Usage
from ...core.task import Task
from ...core.values import as_text
from ...machine import Machine, Run, step_records
from ...runtime.attempts import Attempt, AttemptLog, WorkerTimes
from ...runtime.client.report import report
from .details import limits, named
from .model import Clock, Trace
from .prefixes import Context, prefix_tree
from .votes import votes_of

__all__ = ["UNFINISHED", "TraceRecorder"]

UNFINISHED = "the journal ends before the run did: it was cut short, or it is still running"
"""The note of a trace whose journal does not tell its run's end."""


class TraceRecorder:
    """Collects the trace of one run. Call `take` after each event the machine handled, then `trace` once."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._log = AttemptLog(run, details=True)
        self._submitted: Submitted | None = None
        self._finish: Finish | None = None
        self._run: Run | None = None
        self._now = 0.0
        self._entered: dict[str, float] = {}
        self._attempts: dict[int, Attempt] = {}

    @property
    def begun(self) -> bool:
        """Whether the run was submitted."""
        return self._submitted is not None

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take note of one event and what followed."""
        if isinstance(event, Submitted) and event.run == self.run and self._submitted is None:
            self._submitted = event
        happened = self._log.take(event, machine, actions)
        self._now = happened.at
        for run in happened.runs:
            self._run = run
        for step in happened.entered:
            self._entered[step.step] = happened.at
        for attempt in happened.began:
            self._attempts[attempt.id] = attempt
        for finish in happened.finished:
            self._finish = finish

    def trace(self, clocks: Sequence[Clock], notes: Sequence[str] = ()) -> Trace | None:
        """Return the trace, times in seconds after submission, or `None` if the run was never submitted here.

        Args:
            clocks: how the events' times lie on the wall clock, at least one.
            notes: what a reader should know besides.
        """
        submitted, finish = self._submitted, self._finish
        if submitted is None:
            return None
        began, request = submitted.at, submitted.request
        trace = Trace(
            run=self.run,
            text=request.text,
            task=named(request.task),
            planner=named(request.planner),
            policies=tuple(map(named, request.policies)),
            budget=limits(request.budget),
            seed=request.seed,
            clocks=tuple(Clock(each.at - began, each.zero + began, each.exact) for each in clocks),
            seconds=self._now - began,
            notes=list(notes),
        )
        if finish is not None:
            trace.status, trace.failure, trace.usage = finish.status, finish.failure, finish.usage
            trace.critical_path_tokens = finish.critical_path_tokens
            trace.answer = "" if finish.result is None else as_text(finish.result.value)
        else:
            trace.usage = sum((each.usage for each in self._attempts.values()), Usage())
            trace.notes.append(UNFINISHED)
        if len(clocks) > 1:
            trace.notes.append(f"it was interrupted and resumed: {len(clocks)} sessions, whose pauses are left out")
        if not all(each.exact for each in clocks):
            trace.notes.append("the journal tells wall-clock time to the second only")
        run = self._run
        if run is None:
            return trace
        trace.steps = self._steps(run, began)
        trace.attempts = [_shifted(each, began) for each in self._attempts.values()]
        if finish is not None and finish.result is not None:
            trace.verified = _verified(run.task, finish.result)
        if finish is not None:
            trace.waited_for = tuple(each.step for each in report(finish, run, began, self._now).waited_for)
        trace.hosts = [_worker(each, began, trace.seconds) for each in self._log.workers.values()]
        _assign_lanes(trace.attempts)
        trace.votes = votes_of(trace.steps, run.task)
        trace.segments, trace.unit = prefix_tree(self._contexts(trace.steps))
        return trace

    def _steps(self, run: Run, began: float) -> list[StepRecord]:
        last = {attempt.step: attempt for attempt in self._attempts.values()}
        steps = list(step_records(run, began))
        for step in steps:
            step.entered = self._entered.get(step.step, began) - began
            attempt = last.get(step.step)
            result = attempt.result if attempt is not None else None
            if step.value is not None:
                step.text = as_text(step.value)
            elif result is not None:  # of a step that was given up
                step.text = "" if result.value is None else as_text(result.value)
                step.logprob, step.signals = result.logprob, result.signals
            if not step.text and attempt is not None:
                step.text = "".join(attempt.texts)
        return steps

    def _contexts(self, steps: Sequence[StepRecord]) -> list[Context]:
        """Return what the engine read and wrote for each model call that has begun, in order of their starts."""
        known = {step.step: step for step in steps}
        told: dict[str, Attempt] = {}
        for attempt in self._attempts.values():  # of a step that was tried more than once: all have the same context
            if attempt.read or not told.get(attempt.step, attempt).read:
                told[attempt.step] = attempt
        made: list[Context] = []
        for attempt in sorted(told.values(), key=lambda each: (each.start, each.id)):
            op = attempt.op
            if op.kind == "think" and attempt.step in known:
                begin = (Text(text=op.begin),) if op.begin else ()
                prompt = (*(part for part in op.parts if part.kind != "ref"), *begin)
                texts, line = "".join(attempt.texts), _line(known[attempt.step], known)
                made.append(Context(attempt.step, prompt, attempt.result, texts, attempt.usage, line))
        return made


def _line(step: StepRecord, known: dict[str, StepRecord]) -> frozenset[str]:
    """Return the steps whose contexts a step continues, however indirectly."""
    line: set[str] = set()
    above = [step.after]
    while above:
        each = above.pop()
        if each is not None and each not in line:
            line.add(each)
            above += [known[each].after, known[each].source]
    return frozenset(line)


def _shifted(attempt: Attempt, began: float) -> Attempt:
    def shift(at: float | None) -> float | None:
        return None if at is None else at - began

    points = attempt.progress
    stride = max(1, len(points) // 60)  # enough for a picture
    kept = [*points[::stride], *(points[-1:] if stride > 1 else [])]
    return replace(
        attempt,
        start=attempt.start - began,
        end=shift(attempt.end),
        stopping=shift(attempt.stopping),
        first=shift(attempt.first),
        progress=[(at - began, tokens) for at, tokens in kept],
    )


def _verified(task: Task, result: Result) -> bool | None:
    try:
        value = result.value
        found = task.extract(value) if isinstance(value, str) else value
        return None if found is None else task.verify(found)
    except Exception:  # a task of somebody else's, asked about what it did not expect: then it cannot tell
        return None


def _worker(there: WorkerTimes, began: float, seconds: float) -> WorkerTimes:
    ups = [(start - began, None if end is None else end - began) for start, end in there.ups]
    shown = [(max(0.0, start), end) for start, end in ups if end is None or end > 0]
    return replace(there, ups=[each for each in shown if each[0] <= seconds])


def _assign_lanes(attempts: Sequence[Attempt]) -> None:
    """Give each attempt the lowest slot of its worker that is free for all of its time."""
    free_from: dict[str, list[float]] = {}
    for attempt in sorted(attempts, key=lambda each: (each.start, each.id)):
        lanes = free_from.setdefault(attempt.worker, [])
        end = attempt.end if attempt.end is not None else float("inf")
        for lane, until in enumerate(lanes):
            if until <= attempt.start:
                attempt.lane, lanes[lane] = lane, end
                break
        else:
            attempt.lane = len(lanes)
            lanes.append(end)
