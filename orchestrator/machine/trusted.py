"""Actions made of values that are known to be valid, without having pydantic check them again.

A dispatch is made for every attempt, and checking its fields took a third of the machine's time. The only place that
knows how pydantic keeps a model's fields; it decides nothing.
"""

from __future__ import annotations

from ..core.events import Dispatch, Job
from ..core.plan import Call, Think

_new = object.__new__
_set = object.__setattr__
_JOB_FIELDS = {"attempt", "run", "step", "op", "seconds", "generated", "priority"}
_DISPATCH_FIELDS = {"worker", "job", "reason"}


def dispatch(
    worker: str,
    attempt: int,
    run: str,
    step: str,
    op: Think | Call,
    seconds: float | None,
    generated: tuple[int, ...] = (),
    priority: int = 0,
    reason: str = "",
) -> Dispatch:
    """Return what `Dispatch(worker=worker, job=Job(...), reason=reason)` returns."""
    job = _new(Job)
    fields = {"attempt": attempt, "run": run, "step": step, "op": op, "seconds": seconds}
    _set(job, "__dict__", {**fields, "generated": generated, "priority": priority})
    _set(job, "__pydantic_fields_set__", _JOB_FIELDS)
    _set(job, "__pydantic_extra__", None)
    _set(job, "__pydantic_private__", None)
    action = _new(Dispatch)
    _set(action, "__dict__", {"kind": "dispatch", "worker": worker, "job": job, "reason": reason})
    _set(action, "__pydantic_fields_set__", _DISPATCH_FIELDS)
    _set(action, "__pydantic_extra__", None)
    _set(action, "__pydantic_private__", None)
    return action
