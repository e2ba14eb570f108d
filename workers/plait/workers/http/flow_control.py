"""When a request may be sent: the concurrency limit, the server's pauses, and the retry policy.

The worker itself retries only what cost the server nothing: the request was rejected, or the connection broke at once.
A response that broke off is resumed from its token ids, once. Every other error ends the attempt, with the tokens that
it used, and the step's own retries (`Retries.think`) decide.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from plait.core.sampling import StructuredOutput

from .request_body import ServerError

MAX_SERVER_WAIT_S = 600.0
"""A server that asks to wait for longer fails the step."""
MAX_SHOWN_WAIT_S = 1e9
"""Longest wait that a message states; a server may ask for any number."""
FREE_FAILURE_S = 1.0
"""A request that failed within this time cost the server next to nothing."""
OVERLOADED = (429, 503)
"""Statuses of a server that has too many requests."""
INVALID = (400, 422, 500)
"""Statuses with which servers refuse a field. vLLM and llama.cpp answer 500 where a grammar cannot be compiled."""


# --- retries ---


@dataclass(frozen=True, slots=True)
class Fresh:
    """The server has generated nothing yet."""

    retries: int = 0
    """Requests that were sent again."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """Part of the response has arrived."""

    retries: int
    can_resume: bool
    """All token ids are known, and another request may continue after them."""


@dataclass(frozen=True, slots=True)
class Resuming:
    """A further request continues where the response broke off, and has generated nothing yet."""

    retries: int


AttemptState = Fresh | Streaming | Resuming
Feature = Literal["tools", "chat template", "form"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send again at once, without a feature that the server refused."""

    without: Feature


@dataclass(frozen=True, slots=True)
class SendAfter:
    """Send again after a pause."""

    seconds: float
    state: Fresh | Resuming


@dataclass(frozen=True, slots=True)
class Fail:
    """End the attempt."""

    error: ServerError


@dataclass(frozen=True, slots=True)
class RetryContext:
    """Inputs of a retry decision other than state and error."""

    max_retries: int
    backoff_s: float
    jitter_s: float = 0.0
    """Random seconds on top of a pause: requests that were rejected together would else return together."""
    seconds_left: float | None = None
    """Of the step's budget, if it has a time limit."""
    refused: Feature | None = None
    """An optional feature of the request that this error refuses."""
    required_form: StructuredOutput | None = None
    """A form that the step cannot do without."""


def next_request(state: AttemptState, error: ServerError, context: RetryContext) -> Send | SendAfter | Fail:
    """Decide what follows a failed request. Pure: no clock, no randomness, no request."""
    if not isinstance(state, Streaming):
        if context.refused is not None:
            return Send(without=context.refused)
        if context.required_form is not None and error.status in INVALID:
            error = error.changed(
                f"{error.message} (the step asks for the form {context.required_form.kind!r}: check what specifies "
                "it, and that the model's tokenizer has tokens to write it with)"
            )
    if not error.retryable:
        return Fail(error)
    following: Fresh | Resuming
    match state:
        case Streaming(retries, can_resume):
            if not can_resume or retries >= context.max_retries:
                return Fail(error)
            following = Resuming(retries + 1)
        case Fresh(retries) | Resuming(retries):
            # Lost tokens were paid for: only retries of the step, which its budget covers, may repeat that.
            if error.costly:
                return Fail(error)
            # A broken connection is tried once more, not `max_retries` times: it may have been this request's fault.
            if retries >= (context.max_retries if error.refused else min(1, context.max_retries)):
                # The step retries less after failed retries of the worker.
                return Fail(error.changed(retryable=not error.refused))
            following = replace(state, retries=retries + 1)
    return _wait_or_fail(following, error, context)


def _wait_or_fail(following: Fresh | Resuming, error: ServerError, context: RetryContext) -> SendAfter | Fail:
    """Return the pause before a retry, unless the server asks for a longer one than the step has."""
    asked, left = error.retry_after or 0.0, context.seconds_left
    if asked > MAX_SERVER_WAIT_S or (left is not None and asked > left):
        left = min(asked if left is None else left, MAX_SHOWN_WAIT_S)
        message = f"{error.message} (it asks to wait for {asked:.4g} s, and the step has {min(left, asked):.0f} s)"
        return Fail(error.changed(message, retryable=False))
    seconds = max(asked, context.backoff_s * 2.0 ** (following.retries - 1)) + context.jitter_s
    # Without time for another try the failure is reported now: the time limit would replace it.
    return SendAfter(seconds, following) if left is None or seconds < left else Fail(error)


def classify_error(error: ServerError, seconds: float) -> ServerError:
    """Return a request's error with what its duration shows: whether the server rejected it before generating
    anything, and whether it may have generated tokens that never arrived."""
    is_quick = seconds < FREE_FAILURE_S
    refused = error.unreachable or error.status in OVERLOADED or (error.status is not None and is_quick)
    return error.changed(refused=refused, costly=error.costly or not (refused or is_quick))


# --- concurrency ---

Outcome = Literal["served", "overloaded", "neither"]


class ConcurrencyLimiter:
    """Permits for requests, first come first served.

    The limit starts at `slots`. A request that the server rejected as too many halves it, once for all requests that
    were running together. A request that was served adds `1 / limit`, so a whole round of requests adds about one
    (additive increase, multiplicative decrease: Chiu and Jain 1989).
    """

    def __init__(self, slots: int) -> None:
        """Start with the limit at `slots`."""
        self.slots = slots
        self.limit: float = float(slots)
        """Requests that may be at the server at once; its integer part counts, and it is at least 1."""
        self.running: int = 0
        self.paused_until: float = 0.0
        """No request is sent before this loop time."""
        self._round = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def pause(self, seconds: float) -> None:
        """Send no request for this time: the server asked for that."""
        self.paused_until = max(self.paused_until, asyncio.get_running_loop().time() + seconds)

    @property
    def pause_left_s(self) -> float:
        """Seconds until a request may be sent."""
        return max(0.0, self.paused_until - asyncio.get_running_loop().time())

    async def acquire(self) -> int:
        """SendAfter for a permit and return the number of the round, for `release`."""
        # A new request queues behind those that wait, or a stream of new ones could starve them.
        if self.running >= int(self.limit) or self._waiters:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._return_permit()  # it was granted in the same turn of the loop as the cancellation
                else:
                    with contextlib.suppress(ValueError):  # `_return_permit` may have dropped it already
                        self._waiters.remove(waiter)
                raise
        else:
            self.running += 1
        return self._round

    def release(self, round_: int, outcome: Outcome) -> None:
        """Return a permit, with how the server took the request."""
        # The round keeps a burst of rejections of one overload from halving the limit once for each of them.
        if outcome == "overloaded" and round_ == self._round:
            self.limit = max(1.0, self.limit / 2)
            self._round += 1
        elif outcome == "served":
            self.limit = min(float(self.slots), self.limit + 1 / self.limit)
        self._return_permit()

    def _return_permit(self) -> None:
        self.running -= 1
        while self._waiters and self.running < int(self.limit):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.running += 1
                waiter.set_result(None)
