"""Replays a journal: feeds its events to new machines and finds the first actions that differ from those recorded.

A difference means that a policy or merge is not pure, that the code has changed, or that the file was tampered with.
Planners and workers are not called: the events hold their plans and results. In a session whose machine had runs that
this file does not hold (`Header.told`), the machine follows the recorded attempts and chooses none itself.

`history` yields one run's events across all its sessions and reads no other run: its machine follows the recorded
attempts. `histories` yields the events of several runs in few passes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from ...core.errors import ConfigError
from ...core.events import Action, Event, Finish, ForeignEvent
from ...core.interfaces import PluginRegistry
from ...machine import Machine
from .journal import Journal
from .location import Location
from .recorded_actions import dump, of_runs, read
from .tables import EventRow, Header, RunLine


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
    """The outcome of a replay."""

    events: int
    """Events replayed; those after a divergence are not."""
    sessions: int
    recomputed: int
    """Events whose actions the writer did not record before it crashed. They cannot be compared."""
    finished: tuple[Finish, ...]
    """The ends of the runs that have ended."""
    machine: Machine
    """The last session's machine after the last replayed event."""
    divergence: Divergence | None = None


def replay(
    path: Location | str, plugins: PluginRegistry, *, until: int | None = None, check: Callable[..., None] | None = None
) -> ReplayReport:
    """Replay a journal and compare the actions, up to and including event `until` if given.

    `check(machine, follows=…)` is called after every event; `follows`: the machine follows recorded attempts. Raises
    `ConfigError` for a file that cannot be read.
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
            elif header.base != row.seq - 1 or header.resumes is not None:
                machine = _rebuilt(journal, plugins, header.base, header.resumes)
            sessions += 1
        events += 1
        recomputed += row.actions is None
        divergence = _step(machine, row, header, check, finished)
        if divergence is not None:
            break
    return ReplayReport(events, sessions, recomputed, tuple(finished), machine, divergence)


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of a run's history, the machine after it, and the actions that followed."""

    seq: int
    header: Header
    """Header of its session."""
    event: Event
    machine: Machine
    """The same object at every moment."""
    actions: list[Action]
    recorded: str | None
    """The recorded actions in the format of `dump`; `None` if the writer crashed before it wrote them."""
    anew: str
    """The actions that follow now, in the same form."""
    differs: bool
    """The actions now are not those recorded."""


def history(path: Location | str, plugins: PluginRegistry, run: str) -> Iterator[Moment]:
    """Yield a run's history: its events in the session of its submission, then in the sessions that resumed it. An
    event of another run that affected this run appears as `ForeignEvent`.

    Raises `ConfigError` for a file that cannot be read and for a run that is not in it.
    """
    yield from Growing(path, plugins, run).moments(whole=True)


class Growing:
    """The growing history of a run that may be active.

    A later session (after a resume, or when another run joined the machine) may continue from an earlier event: then
    the history starts again, with another machine.
    """

    def __init__(self, path: Location | str, plugins: PluginRegistry, run: str) -> None:
        self._journal, self._plugins, self._run = Journal(path), plugins, run
        self._headers: dict[int, Header] = {}
        self._spans: list[tuple[int, int]] = []
        self._machine: Machine | None = None
        self._last = 0
        """The last event that need not be read again."""

    def moments(self, *, whole: bool = False) -> Iterator[Moment]:
        """Yield the events written since the last call. With `whole`, also yield final events without written actions,
        in sessions whose machine follows recorded actions. Raises `ConfigError` as `history` does."""
        journal, run = self._journal, self._run
        headers = _headers(journal)
        if self._machine is None or headers != self._headers:
            ends = _ends(journal, headers, journal.newest(like=run))
            if run not in ends:
                raise ConfigError(f"{journal.path} holds no run {run!r} (`plait runs list` shows what is there)")
            self._headers, self._last = headers, 0
            self._spans = _spans(headers, ends[run])
            self._machine = _machine(headers[self._spans[0][0]], self._plugins)
        if (first := self._spans[-1][0]) == max(headers):
            self._spans[-1] = (first, sys.maxsize)  # it may grow
        held: list[tuple[EventRow, Header]] = []
        for row in journal.rows_of(run, self._last):
            first = _session(self._spans, row)
            if first is not None:
                held.append((row, headers[first]))
                if row.actions is None and not whole:
                    continue
                for earlier, header in held:
                    self._last = earlier.seq
                    yield _moment(journal, self._machine, earlier, header, run)
                held = []
            self._last = max(self._last, row.seq)


def histories(
    path: Location | str, plugins: PluginRegistry, runs: Collection[str]
) -> Iterator[tuple[list[str], Iterator[Moment]]]:
    """Yield the histories of several runs, in one pass for all runs of a session that was not resumed. Runs that are
    not in the file are skipped. Raises `ConfigError` for a file that cannot be read."""
    journal, wanted = Journal(path), frozenset(runs)
    headers = _headers(journal)
    together: dict[int, list[str]] = defaultdict(list)
    for run, last in _ends(journal, headers, [line for line in journal.runs() if line.run in wanted]).items():
        together[last].append(run)
    for last, several in together.items():
        yield several, _replay_rows(journal, plugins, headers, _spans(headers, last))


def _headers(journal: Journal) -> dict[int, Header]:
    headers = dict(journal.sessions())
    if 1 not in headers:
        raise ConfigError(f"{journal.path} holds no session: nothing was ever written to it")
    return headers


def _ends(journal: Journal, headers: dict[int, Header], lines: Iterable[RunLine]) -> dict[str, int]:
    """Return the last event of each run's last session."""
    starts, last = sorted(headers), journal.last
    ends: dict[str, int] = {}
    for line in lines:
        run, place = line.run, line.first
        resumed = [first for first in starts if headers[first].resumes == run and place < first <= last]
        start = resumed[-1] if resumed else max((first for first in starts if first <= place), default=None)
        if start is None:
            raise ConfigError(f"{journal.path} is damaged: no session of it holds the beginning of run {run}")
        later = [first for first in starts if first > start and not _is_continuation(headers[first], first)]
        ends[run] = min(later, default=last + 1) - 1
    return ends


def _is_continuation(header: Header, first: int) -> bool:
    """Return whether a session continues the machine of the session before it, with all of its runs."""
    return header.resumes is None and header.base is not None and header.base == first - 1


def _spans(headers: dict[int, Header], last: int) -> list[tuple[int, int]]:
    """Return the stretches of events, oldest first, that lead from a new machine to event `last`."""
    first = max((seq for seq in headers if seq <= last), default=None)
    if first is None:
        raise ConfigError(f"the journal is damaged: no session of it holds event {last}")
    base = headers[first].base
    if base is not None and base >= first:
        raise ConfigError(f"the journal is damaged: the session of event {first} continues a later one")
    return [*([] if base is None else _spans(headers, base)), (first, last)]


def _session(spans: list[tuple[int, int]], row: EventRow) -> int | None:
    """Return the first event of the span that holds a row."""
    return next((first for first, last in spans if first <= row.seq <= last), None)


def _replay_rows(
    journal: Journal,
    plugins: PluginRegistry,
    headers: dict[int, Header],
    spans: list[tuple[int, int]],
    run: str | None = None,
) -> Iterator[Moment]:
    machine = _machine(headers[spans[0][0]], plugins)
    for row in journal.rows() if run is None else journal.rows_of(run, 0):
        if (first := _session(spans, row)) is not None:
            yield _moment(journal, machine, row, headers[first], run)


def _moment(journal: Journal, machine: Machine, row: EventRow, header: Header, run: str | None = None) -> Moment:
    """Return the event of a row; with `run`, for a machine with only this run."""
    # Keep ticks of other runs: they also fire this run's timers.
    event = ForeignEvent(at=row.at) if row.foreign and row.kind != "tick" else row.load()
    try:
        actions, anew = _feed_event(machine, event, row, header, run)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"event {row.seq} of {journal.path} cannot be replayed ({type(error).__name__}: {error}): the file is "
            "damaged, or another version of plait wrote it"
        ) from error
    differs = row.actions not in (None, anew)
    return Moment(row.seq, header, event, machine, actions, row.actions, anew, differs)


def _feed_event(
    machine: Machine, event: Event, row: EventRow, header: Header, run: str | None = None
) -> tuple[list[Action], str]:
    """Feed an event to a machine. Return the actions, and the same as a journal records them."""
    if not header.told and run is None:
        actions = machine.handle(event)
        return actions, dump(actions, machine.refused)
    runs = _All() if header.resumes is None else {header.resumes}
    if run is not None:
        runs = {run}
    actions = machine.follow(event, [order for order, order_run in read(row.actions).orders if order_run in runs])
    return actions, dump(*of_runs(runs, actions, machine.refused))


class _All:
    """A set that contains every run."""

    def __contains__(self, run: object) -> bool:
        return bool(run)


def _rebuilt(journal: Journal, plugins: PluginRegistry, last: int, run: str | None) -> Machine:
    """Return the machine with which a session continued. A session that resumed a run had rebuilt only this run by its
    recorded attempts: an event with actions lost in a crash had sent nothing."""
    headers = _headers(journal)
    machine: Machine | None = None
    for moment in _replay_rows(journal, plugins, headers, _spans(headers, last), run):
        machine = moment.machine
    if machine is None:
        raise ConfigError(f"{journal.path} is damaged: a session continues event {last}, which is missing")
    return machine


def _machine(header: Header, plugins: PluginRegistry) -> Machine:
    return Machine(plugins, cancel_timeout=header.grace, lease=header.lease)


def _step(
    machine: Machine, row: EventRow, header: Header, check: Callable[..., None] | None, finished: list[Finish]
) -> Divergence | None:
    event = row.load()
    try:
        actions, anew = _feed_event(machine, event, row, header)
        if check is not None:
            check(machine, follows=header.told)
    except Exception as error:
        return Divergence(row.seq, row.event, row.actions, f"raised {type(error).__name__}: {error}")
    if row.actions not in (None, anew):
        return Divergence(row.seq, row.event, row.actions, anew)
    finished.extend(action for action in actions if isinstance(action, Finish))
    return None
