"""Replays a journal: the same events through new machines, and where the actions first differ from those recorded.

A difference means that a policy or merge is not pure, that the code has changed, or that the file was tampered with;
which of these it is, is not decided here. Planners and workers are not called: what they said stands in the events.
Also the history of one run across the sessions in which it was resumed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.errors import ConfigError, ReplayDiverged
from ...core.events import Action, Event, Finish
from ...core.interfaces import Plugins
from ...machine.invariants import check as check_invariants
from ...machine.machine import Machine
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
    headers = _headers(journal)
    header = headers[1]
    machine = _machine(header, plugins)
    events = sessions = recomputed = 0
    finished: list[Finish] = []
    divergence: Divergence | None = None
    for row in journal.rows():
        if until is not None and row.seq > until:
            break
        if row.seq in headers:
            header = headers[row.seq]
            if header.base is None:
                machine = _machine(header, plugins)
            elif header.base != row.seq - 1:
                machine = _rebuilt(journal, plugins, header.base)
            sessions += 1
        events += 1
        recomputed += row.actions is None
        divergence = _step(machine, row, header, check, finished)
        if divergence is not None:
            break
    return ReplayReport(events, sessions, recomputed, tuple(finished), machine, divergence)


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a run's history, the machine after it, and what followed."""

    seq: int
    header: Header
    """Of the session that it stands in."""
    event: Event
    machine: Machine
    """The same object at every moment."""
    actions: list[Action]
    recorded: str | None
    """What followed when it was written, as `dump` has it; `None` if that was not written any more."""
    differs: bool
    """What followed is not what was recorded."""


def history(path: str | os.PathLike[str], plugins: Plugins, run: str) -> Iterator[Moment]:
    """Yield a run's history: the session in which it was submitted, and those that went on with it, as if it had never
    been interrupted. What other runs of its session did stands in between.

    Raises `ConfigError` for a file that cannot be read and for a run that is not in it.
    """
    journal = Journal(path)
    headers = _headers(journal)
    spans = _spans(headers, _last_of(journal, headers, run))
    yield from _through(journal, plugins, headers, spans)


def _headers(journal: Journal) -> dict[int, Header]:
    headers = dict(journal.sessions())
    if 1 not in headers:
        raise ConfigError(f"{journal.path} holds no session: nothing was ever written to it")
    return headers


def _last_of(journal: Journal, headers: dict[int, Header], run: str) -> int:
    """Return the last event of the last session that a run was worked on in."""
    starts = sorted(headers)
    submitted = last = 0
    for row in journal.rows():
        last = row.seq
        if row.kind == "submitted" and row.run == run:
            submitted = row.seq
    if not submitted:
        raise ConfigError(f"{journal.path} holds no run {run!r} (`plait runs list` shows those that are there)")
    resumed = [first for first in starts if headers[first].resumes == run and first > submitted and first <= last]
    start = resumed[-1] if resumed else max(first for first in starts if first <= submitted)
    return min([first for first in starts if first > start], default=last + 1) - 1


def _spans(headers: dict[int, Header], last: int) -> list[tuple[int, int]]:
    """Return the stretches of events, oldest first, that lead from a new machine to event `last`."""
    first = max(each for each in headers if each <= last)
    base = headers[first].base
    return [*([] if base is None else _spans(headers, base)), (first, last)]


def _through(
    journal: Journal, plugins: Plugins, headers: dict[int, Header], spans: list[tuple[int, int]]
) -> Iterator[Moment]:
    machine = _machine(headers[spans[0][0]], plugins)
    for row in journal.rows():
        first = next((first for first, last in spans if first <= row.seq <= last), None)
        if first is None:
            continue
        event = row.load()
        actions = machine.handle(event)
        header = headers[first]
        differs = row.actions not in (None, dump(actions, whole=header.format == 1))
        yield Moment(row.seq, header, event, machine, actions, row.actions, differs)


def _rebuilt(journal: Journal, plugins: Plugins, last: int) -> Machine:
    headers = _headers(journal)
    machine: Machine | None = None
    for moment in _through(journal, plugins, headers, _spans(headers, last)):
        machine = moment.machine
    assert machine is not None
    return machine


def _machine(header: Header, plugins: Plugins) -> Machine:
    return Machine(plugins, cancel_timeout=header.grace, lease=header.lease)


def _step(machine: Machine, row: Row, header: Header, check: bool, finished: list[Finish]) -> Divergence | None:
    event = row.load()
    try:
        actions = machine.handle(event)
        if check:
            check_invariants(machine)
    except Exception as error:
        return Divergence(row.seq, row.event, row.actions, f"raised {type(error).__name__}: {error}")
    replayed = dump(actions, whole=header.format == 1)
    if row.actions is not None and replayed != row.actions:
        return Divergence(row.seq, row.event, row.actions, replayed)
    finished.extend(action for action in actions if isinstance(action, Finish))
    return None
