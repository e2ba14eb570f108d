"""The states of a step and the table of its legal moves."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """State of a step. Whether a worker has received a cancel is a state of the attempt, not of the step."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    EXPANDING = "expanding"
    EXPANDED = "expanded"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the step will not move any more."""
        return not MOVES[self]


WAITING, READY, RUNNING, EXPANDING, EXPANDED, DONE, FAILED, CANCELLED = State
"""Aliases of the members: access through the class takes ten times as long."""

_GIVE_UP = (FAILED, CANCELLED)


UNDER_WAY = (State.RUNNING, State.EXPANDING, State.EXPANDED)
"""States of a step that has begun and not ended."""

MOVES: dict[State, tuple[State, ...]] = {
    State.WAITING: (State.READY, State.EXPANDING, State.DONE, *_GIVE_UP),
    State.READY: (State.RUNNING, *_GIVE_UP),
    State.RUNNING: (State.WAITING, State.EXPANDING, State.DONE, *_GIVE_UP),
    State.EXPANDING: (State.EXPANDED, State.DONE, *_GIVE_UP),
    State.EXPANDED: (State.DONE, *_GIVE_UP),
    State.DONE: (),
    State.FAILED: (),
    State.CANCELLED: (),
}
"""Legal moves of a step. A join goes from waiting directly to its end, or to expanding. A retry goes from running back
to waiting and stays there during its backoff."""


NAMES: dict[State, str] = {state: state.value for state in State}
"""Plain strings: the garbage collector skips strings, but tracks members of an enumeration."""


Move = tuple[float, str, str, str, str]
"""Time, step, old state, new state, reason. The garbage collector skips a plain tuple of atoms; a plan of 100,000 steps
has 300,000 moves."""


def describe_move(move: Move) -> str:
    """Return a move as a line for people."""
    at, _, start, finish, reason = move
    return f"{at:.6f} {start} -> {finish}" + (f" ({reason})" if reason else "")
