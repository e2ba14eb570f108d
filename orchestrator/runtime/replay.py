"""Replays a journal: the same events through new machines, and where the actions first differ from those recorded.

A difference means that a policy or merge is not pure, that the code has changed, or that the file was tampered with;
which of these it is, is not decided here. Planners and workers are not called: what they said stands in the events.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..core.base import Plugins
from ..core.errors import ConfigError, ReplayDiverged
from ..core.events import Finish
from ..core.invariants import check as check_invariants
from ..core.machine import Machine
from .journal import Header, Journal, Row, dump


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first event whose actions were not those recorded."""

    index: int
    """Number of the event, from 1."""
    event: str
    """JSON."""
    recorded: str | None
    """JSON list of actions; `None` where none were recorded."""
    replayed: str
    """JSON list of actions, or what the machine raised."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay saw."""

    events: int
    """Events replayed; those after a divergence are not."""
    sessions: int
    recomputed: int
    """Events whose actions were not recorded, as the writer crashed before: they are what the machine does now."""
    finished: tuple[Finish, ...]
    """The ends of the runs that have ended."""
    machine: Machine
    """The last session's machine, as it is after the last event replayed."""
    divergence: Divergence | None = None

    def demand(self) -> None:
        """Raise `ReplayDiverged` if there was a divergence."""
        if self.divergence is not None:
            raise ReplayDiverged(self.divergence.index, self.divergence.recorded or "nothing", self.divergence.replayed)


def replay(
    path: str | os.PathLike[str], plugins: Plugins, *, until: int | None = None, check: bool = False
) -> ReplayReport:
    """Replay a journal and compare, up to and with event `until` if given.

    `check` tests the machine's invariants after every event (slow). Raises `ConfigError` for a file that cannot be
    read.
    """
    journal = Journal(path)
    headers = dict(journal.sessions())
    if 1 not in headers:
        raise ConfigError(f"{journal.path} holds no session: nothing was ever written to it")
    machine = _machine(headers[1], plugins)
    events = sessions = recomputed = 0
    finished: list[Finish] = []
    divergence: Divergence | None = None
    for row in journal.rows():
        if until is not None and row.seq > until:
            break
        if row.seq in headers:
            machine = _machine(headers[row.seq], plugins)
            sessions += 1
        events += 1
        recomputed += row.actions is None
        divergence = _step(machine, row, check, finished)
        if divergence is not None:
            break
    return ReplayReport(events, sessions, recomputed, tuple(finished), machine, divergence)


def _machine(header: Header, plugins: Plugins) -> Machine:
    return Machine(plugins, grace=header.grace, lease=header.lease)


def _step(machine: Machine, row: Row, check: bool, finished: list[Finish]) -> Divergence | None:
    event = row.load()
    try:
        actions = machine.handle(event)
        if check:
            check_invariants(machine)
    except Exception as error:
        return Divergence(row.seq, row.event, row.actions, f"raised {type(error).__name__}: {error}")
    replayed = dump(actions)
    if row.actions is not None and replayed != row.actions:
        return Divergence(row.seq, row.event, row.actions, replayed)
    finished.extend(action for action in actions if isinstance(action, Finish))
    return None
