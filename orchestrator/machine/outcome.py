"""How things end: whether a failed step is tried again, and what a run that is over has to say.

Pure functions of the records; they change nothing.
"""

from __future__ import annotations

from ..core.errors import Interrupted, NeverMade
from ..core.events import Finish, Status
from ..core.result import Failure
from .records import Node, Run

_CUTS = ("BudgetExceeded", "DeadlineExceeded")


def is_limit(failure: Failure) -> bool:
    """Whether a failure is a limit's doing rather than the step's."""
    return failure.kind in _CUTS


def retry_delay(node: Node, failure: Failure) -> float | Failure:
    """Return the seconds to wait before a step is tried again, or the failure it ends in.

    A step with side effects is never tried again. One whose worker was lost is, at once, and apart from its own count,
    and however often our own process ended; else its kind's retries count, with exponential backoff.
    """
    retries = node.run.request.retries
    if failure.kind == NeverMade.__name__:
        return 0.0
    if node.step.side_effects:
        if failure.lost:
            message = f"{failure.message}; whether it took effect is unknown, so it is not tried again"
            return failure.model_copy(update={"message": message})
        return failure
    if failure.kind == Interrupted.__name__ or (failure.lost and node.lost - node.interrupted < retries.lost):
        return 0.0
    again = retries.think if node.step.op.kind == "think" else retries.call
    tried = node.tries - node.lost
    if failure.retryable and not failure.lost and tried <= again:
        return retries.backoff * 2.0 ** (tried - 1)
    if node.tries > 1:
        return failure.model_copy(update={"message": f"{failure.message} (after {node.tries} tries)"})
    return failure


def is_over(run: Run) -> bool:
    """Whether a run's output step has ended; attempts may still have to be stopped."""
    return run.root is not None and run.root.output is not None and run.root.output.ended


def finish(run: Run, output: Node) -> Finish:
    """Return the one `Finish` of a run whose output step has ended and that has no attempt left."""
    partial = {node.id: node.own.value for node in run.nodes if node.own is not None and node.merge is None}
    status, failure = _status(run, output, bool(partial))
    answered = output.result is not None and status in ("done", "partial")
    path = output.path if answered else max(node.path_own for node in run.nodes)
    return Finish(
        run=run.id,
        status=status,
        result=output.result if answered else None,
        failure=failure,
        partial={} if answered else partial,
        usage=run.meter.usage(),
        critical_path_tokens=path,
        steps=len(run.nodes),
    )


def _status(run: Run, output: Node, any_done: bool) -> tuple[Status, Failure | None]:
    if run.broken is not None:
        return "failed", run.broken
    if output.result is not None:
        return ("partial" if output.limited or output.result.partial else "done"), None
    if run.cancelled is not None:
        return "cancelled", Failure(kind="Cancelled", message=run.cancelled)
    if output.failure is None:
        return "failed", Failure(kind="Cancelled", message=output.story[-1][4])
    return ("partial" if output.limited and any_done else "failed"), output.failure
