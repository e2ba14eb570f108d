"""Calls to an actor, and the check that it is still alive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, TypeVar

from .actor import Pulse

T = TypeVar("T")

SILENCE_LIMIT_S = 60.0
"""Maximum seconds without an answer before an actor counts as dead. For an engine the limit is `PACE` times its slowest
recent answer, at least `LEAST` seconds and at most this."""
PACE, LEAST = 20.0, 10.0
STEP_TIMEOUT_S = 600.0
"""Seconds in which an engine that has requests has to make a step."""


async def hangs(actor: Any, longest: float, by_pace: bool = False) -> str:
    """Ask the actor now and then whether it is there. Return a sentence once it does not answer, or its engine makes no
    step. It is asked twice, because this process may have been suspended itself during the first time.

    `longest`: seconds without an answer; with `by_pace` fewer, by the actor's own pace.
    """
    missed, silence = 0, longest
    took: deque[float] = deque(maxlen=32)
    clock = asyncio.get_running_loop().time
    steps, moved = -1, clock()
    while missed < 2:
        asked = clock()
        answer = asyncio.ensure_future(reply(actor.answers))
        try:  # not `wait_for`, which may swallow a cancel that comes with the answer
            await asyncio.wait([answer], timeout=silence / 2)
            missed = 0 if answer.done() else missed + 1
            if answer.done():
                pulse: Pulse | None = answer.result()
                if pulse is None or not pulse.busy or pulse.steps != steps:
                    steps, moved = pulse.steps if pulse is not None else -1, clock()
        finally:
            answer.cancel()
        if not missed:
            took.append(clock() - asked)
            if by_pace:
                silence = min(longest, max(LEAST, PACE * max(took)))
            if clock() - moved > STEP_TIMEOUT_S:
                return f"its engine has requests and has made no step for {STEP_TIMEOUT_S:g} s"
            await asyncio.sleep(silence / 8)
    return f"it has not answered for {silence:g} s"


async def reply(method: Any, *args: Any) -> Any:
    """Call an actor and await its answer."""
    return await method.remote(*args)


async def answered(answer: Awaitable[T]) -> T:
    """Await a call that was made: Ray's futures are no coroutines, which a task wants."""
    return await answer


def first_line(error: BaseException) -> str:
    """Return an error's class and the first line of its message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
