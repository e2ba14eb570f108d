"""A trace in Chrome's trace-event format, which Perfetto and chrome://tracing show, on the same axis as Ray's timeline.

Times are microseconds of Unix time, and processes and threads are named by strings, as `ray.timeline()` writes them, so
the two lists may be joined. A worker is a process, its slots are threads; steps, planned to ended, are asynchronous
spans of the run's own process.
"""

from __future__ import annotations

from typing import Any

from ...core.record import StepRecord
from ...runtime.runlog import AttemptRecord
from .model import Trace

_COLOURS = {"succeeded": "good", "failed": "terrible", "lost": "terrible", "stopped": "bad", "": "generic_work"}
_ENDED_AT_ALL = 1e-6

Event = dict[str, Any]


def chrome_events(trace: Trace) -> list[Event]:
    """Return the events, oldest first."""
    steps = {step.step: step for step in trace.steps}
    events: list[Event] = [_run(trace), *_steps(trace), *_verdicts(trace), *_flows(trace), *_running(trace)]
    events += [_attempt(attempt, steps[attempt.step], trace) for attempt in trace.attempts]
    return sorted(events, key=lambda event: event["ts"])


def _place(attempt: AttemptRecord) -> Event:
    """Return the process and thread of a worker's slot, named by strings as in Ray's timeline."""
    return {"pid": f"plait worker {attempt.worker}", "tid": f"slot {attempt.lane + 1:03}"}


def _own_place(trace: Trace) -> Event:
    return {"pid": f"plait run {trace.run}", "tid": "run"}


def _us(trace: Trace, at: float) -> float:
    return round(trace.wall(at) * 1e6, 3)


def _run(trace: Trace) -> Event:
    return {
        "ph": "X",
        "cat": "run",
        "name": f"run {trace.run}",
        **_own_place(trace),
        "ts": _us(trace, 0.0),
        "dur": round(trace.seconds * 1e6, 3),
        "args": {
            "planner": trace.planner,
            "status": trace.status,
            **trace.usage.model_dump(),
            "critical_path_tokens": trace.critical_path_tokens,
        },
    }


def _attempt(attempt: AttemptRecord, step: StepRecord, trace: Trace) -> Event:
    end = attempt.end if attempt.end is not None else trace.seconds
    args: dict[str, Any] = {
        "step": step.step,
        "attempt": attempt.id,
        "end": attempt.ending or "unfinished",
        "prompt_tokens": attempt.usage.prompt,
        "cached_tokens": attempt.usage.cached,
        "generated_tokens": attempt.usage.completion,
    }
    if attempt.stop_reason:
        args["stopped"] = attempt.stop_reason
    if attempt.failure is not None:
        args["failure"] = f"{attempt.failure.kind}: {attempt.failure.message}"
    return {
        "ph": "X",
        "cat": f"plait,{step.kind}",
        "name": step.name,
        "cname": _COLOURS[attempt.ending],
        **_place(attempt),
        "ts": _us(trace, attempt.start),
        "dur": round(max(0.0, end - attempt.start) * 1e6, 3),
        "args": args,
    }


def _steps(trace: Trace) -> list[Event]:
    events: list[Event] = []
    for step in trace.steps:
        ended = trace.seconds if step.ended_at is None else step.ended_at
        shared = {"cat": "step", "name": step.name, "id": step.step, **_own_place(trace)}
        args = {"state": step.state, "reason": step.reason, "kind": step.kind, "label": step.label}
        events.append({**shared, "ph": "b", "ts": _us(trace, step.entered), "args": args})
        events.append({**shared, "ph": "e", "ts": _us(trace, max(step.entered, ended))})
    return events


def _verdicts(trace: Trace) -> list[Event]:
    return [
        {
            "ph": "i",
            "s": "p",
            "cat": "verdict",
            "name": f"verdict of {vote.step.rpartition('/')[2].rpartition(':')[2]}",
            **_own_place(trace),
            "ts": _us(trace, vote.at),
            "args": {"why": vote.why, "early": vote.early},
        }
        for vote in trace.votes
        if vote.at is not None
    ]


def _flows(trace: Trace) -> list[Event]:
    """Return arrows from the end of each attempt whose result was read to the attempts at dependent steps."""
    last = {attempt.step: attempt for attempt in trace.attempts if attempt.read and attempt.end is not None}
    first: dict[str, AttemptRecord] = {}
    for attempt in trace.attempts:
        first.setdefault(attempt.step, attempt)
    events: list[Event] = []
    for step in trace.steps:
        reader = first.get(step.step)
        for need in dict.fromkeys((*step.needs, step.after or "")):
            writer = last.get(need)
            if reader is None or writer is None or writer.end is None or writer.end > reader.start:
                continue
            shared = {"cat": "needs", "name": "needs", "id": f"{trace.run} {len(events)}"}
            # Inside the writer's slice; otherwise the arrow would begin at the next slice in the same slot.
            out = max(writer.start, writer.end - _ENDED_AT_ALL)
            events.append({**shared, "ph": "s", **_place(writer), "ts": _us(trace, out)})
            events.append({**shared, "ph": "f", "bp": "e", **_place(reader), "ts": _us(trace, reader.start)})
    return events


def _running(trace: Trace) -> list[Event]:
    """Return a counter of live attempts for each worker."""
    events: list[Event] = []
    for worker in dict.fromkeys(attempt.worker for attempt in trace.attempts):
        own = [attempt for attempt in trace.attempts if attempt.worker == worker]
        moves = [(attempt.start, 1) for attempt in own] + [
            (attempt.end, -1) for attempt in own if attempt.end is not None
        ]
        live = 0
        for at, by in sorted(moves):
            live += by
            shared = {"ph": "C", "name": "attempts", "pid": f"plait worker {worker}"}
            events.append({**shared, "ts": _us(trace, at), "args": {"running": live}})
    return events
