"""Whether a failed step is tried again."""

from __future__ import annotations

from ..core.errors import Interrupted, NeverMade
from ..core.result import Failure
from .records import Node


def retry_delay(node: Node, failure: Failure) -> float | Failure:
    """Return the seconds to wait before a step is tried again, or the failure it ends in.

    A step with side effects is never tried again, unless its attempt was never made. A step whose worker was lost is
    tried again at once: `Retries.lost` times, ends of our own process not counted. After any other failure that is
    retryable, the retries of its kind count, with exponential backoff.
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


def is_limit(failure: Failure) -> bool:
    """Whether a failure comes from a budget or deadline rather than from the step."""
    return failure.kind in ("BudgetExceeded", "DeadlineExceeded")
