"""How long steps of each class took lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from ..core.plan import Step
from ..core.view import Ended

_REMEMBERED = 256
"""Ends of steps of one class that are remembered."""


class LatencyStats:
    """How long steps of each class took lately, in all runs that have policies."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, deque[Ended]] = {}

    def add(self, step: Step, ended: Ended) -> None:
        """Take note of an attempt that ended in a value."""
        self._ends.setdefault(_class(step), deque(maxlen=_REMEMBERED)).append(ended)

    def of(self, step: Step) -> tuple[Ended, ...]:
        """Return the last ones of a step's class, the oldest first."""
        return tuple(self._ends.get(_class(step), ()))


def _class(step: Step) -> Hashable:
    op = step.op
    if op.kind == "think":
        return (op.model, op.sampling.max_tokens, op.after is None)
    return op.tool if op.kind == "call" else None
