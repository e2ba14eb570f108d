"""How a run ends: when it is over, and what its one `Finish` says."""

from __future__ import annotations

from pydantic import JsonValue

from ..core.events import Finish, Status
from ..core.result import Failure, given_up
from .records import Node, Run


def is_over(run: Run) -> bool:
    """Whether a run's output step has ended; attempts may still have to be stopped."""
    return run.root is not None and run.root.output is not None and run.root.output.ended


def finish(run: Run, output: Node) -> Finish:
    """Return the one `Finish` of a run whose output step has ended and that has no attempt left."""
    status, failure = _status(run, output)
    partial: dict[str, JsonValue] = {}
    answered = output.result is not None and status in ("done", "partial")
    if answered:
        path = output.path
    else:
        path = max(node.path_own for node in run.nodes)
        partial = {node.id: node.own.value for node in run.nodes if node.own is not None and node.merge is None}
    return Finish(
        run=run.id,
        status=status,
        result=output.result if answered else None,
        failure=None if failure is None else failure.bare,
        partial=partial,
        usage=run.meter.usage(),
        critical_path_tokens=path,
        steps=len(run.nodes),
    )


def _status(run: Run, output: Node) -> tuple[Status, Failure | None]:
    if run.broken is not None:
        return "failed", run.broken
    if output.result is not None:
        if output.limited:
            return "partial", output.limited
        return ("partial" if output.result.partial else "done"), None
    if run.cancelled is not None:
        return "cancelled", given_up(*run.cancelled)
    if output.failure is None:
        return "failed", given_up(output.cause, output.last_move[4])
    some = any(node.own is not None and node.merge is None for node in run.nodes)
    return ("partial" if output.limited and some else "failed"), output.failure
