"""The pump: write each event of the inbox to the journal, hand it to the machine, and perform the machine's actions.

It holds the position in that work explicitly, so that the driver can leave and resume it at any action.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from ...core.events import (
    Action,
    Cancelled,
    Counted,
    Event,
    Expanded,
    Failed,
    ForeignEvent,
    Limited,
    Paused,
    Progressed,
    Pruned,
    Stopped,
    Submitted,
    Succeeded,
)
from ...machine import Machine
from ..journal.writer import Recorder
from .expander import Expander
from .garbage_collection import Collector, uncollected

LOOP_SLICE_S = 0.002
"""Maximum time of handling events before the event loop's other work gets a turn."""
OFFLOAD_PLAN_STEPS = 100
"""Minimum size of a plan that enters on a thread, beside the event loop."""
OFFLOAD_REACHED_STEPS = 5_000
"""Minimum number of started steps or joined branches of an end that is handled on a thread."""
OFFLOAD_READ_CHARS = 100_000
"""Minimum characters that joins read (`Machine.reads`) at an end that is handled on a thread."""


class Adoption(NamedTuple):
    """A run of another machine that is to continue here."""

    machine: Machine
    run: str
    at: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The inbox is empty."""


@dataclass(frozen=True, slots=True)
class Yield:
    """The slice is used up; there is more to do."""


@dataclass(frozen=True, slots=True)
class WaitForThread:
    """An event is being handled on a thread; nothing may be handled before it has ended."""

    handled: asyncio.Future[list[Action]]


IDLE, YIELD = Idle(), Yield()


class Pump:
    """Handles the events of one driver, one after the other. `perform` performs an action; `write` writes urgent
    entries and resolves the futures that wait for them."""

    def __init__(
        self,
        machine: Machine,
        recorder: Recorder,
        expander: Expander,
        audience: Watchers,
        collector: Collector,
        perform: Callable[[Action], None],
        write: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self.inbox: deque[Event | Adoption] = deque()
        self.runs: dict[int, str] = {}
        """Runs of attempts that are not over."""
        self._machine = machine
        self._recorder = recorder
        self._expander = expander
        self._audience = audience
        self._collector = collector
        self._perform = perform
        self._write = write
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._event: Event | Adoption | None = None
        """The current event: some of its actions are not yet performed, or a thread handles it."""
        self._concerned: tuple[str, ...] = ()
        """The runs that the current event concerns, if there are watchers."""
        self._thread: asyncio.Future[list[Action]] | None = None
        self._actions: Iterator[Action] = iter(())
        """Actions of the current event that are left to perform."""

    def step(self) -> Idle | Yield | WaitForThread:
        """Handle events until the inbox is empty, the slice is used up, or a thread handles one."""
        inbox, audience = self.inbox, self._audience
        watched = audience.general or audience.of  # no watcher is added while this runs
        until = perf_counter() + LOOP_SLICE_S
        while True:
            event = self._event
            handled: list[Action] | None = None
            if event is None:
                if not inbox:
                    return IDLE
                event = inbox.popleft()
                # Before the event is handled: the end of an attempt removes its entry from `runs`.
                self._concerned = self._runs_of(event) if watched else ()
                if self._is_large(event):
                    self._write()  # callers of runs that have ended get their results before this, which takes long
                    self._event = event
                    self._thread = self._loop.run_in_executor(None, self._handle_large, event)
                    return WaitForThread(self._thread)
                handled = self._handle(event)
            elif self._thread is not None:
                handled, self._thread = self._thread.result(), None
            if handled is not None:
                self._actions = iter(handled)
                if isinstance(event, Succeeded | Failed | Stopped):
                    self.runs.pop(event.attempt, None)
                if watched:
                    self._report(event, handled)
            for action in self._actions:  # an iterator: the next call continues where this one leaves
                self._perform(action)
                if perf_counter() >= until:
                    self._event = event
                    self._write()
                    return YIELD
            self._event = None
            if self._expander.flows:
                inbox.extend(self._expander.collect_events(self._machine, self._now()))
            if not handled and perf_counter() >= until:
                return YIELD

    def _report(self, event: Event | Adoption, actions: list[Action]) -> None:
        """Report an event to watchers."""
        # The past of an adopted run is in the other journal; here its steps only begin.
        seen = ForeignEvent(at=self._machine.now) if isinstance(event, Adoption) else event
        self._audience.notify(seen, self._concerned, actions)

    def _is_large(self, event: Event | Adoption) -> bool:
        """Whether an event takes so long that it is handled on a thread, beside the event loop."""
        if isinstance(event, Succeeded):
            # Counting the reached steps costs time itself, so only a machine with many steps does it.
            many = len(self._machine.nodes) >= OFFLOAD_REACHED_STEPS
            if many and self._machine.reach(event.attempt) >= OFFLOAD_REACHED_STEPS:
                return True
            value = event.result.value
            least = len(value) if isinstance(value, str) else 0
            return self._machine.reads(event.attempt, OFFLOAD_READ_CHARS) + least >= OFFLOAD_READ_CHARS
        return isinstance(event, Submitted | Expanded) and _steps(event) >= OFFLOAD_PLAN_STEPS

    def _handle(self, event: Event | Adoption) -> list[Action]:
        if isinstance(event, Adoption):
            return self._take_over(event)
        recorder = self._recorder
        if not recorder.files and not recorder.alone and recorder.current is None:
            return self._machine.handle(event)  # no journal is open, and this event opens none
        entry = self._recorder.take_one(event)  # first: a replay needs the event even if the machine raises
        actions = self._machine.handle(event)
        self._recorder.acted(entry, actions, self._machine.refused)
        return actions

    def _handle_large(self, event: Event | Adoption) -> list[Action]:
        """Handle an event on a thread."""
        with uncollected():
            actions = self._handle(event)
            if isinstance(event, Submitted | Expanded):
                run = event.run if isinstance(event, Submitted) else run_in(event.step)
                self._collector.entered(run, _steps(event))
            return actions

    def _take_over(self, adoption: Adoption) -> list[Action]:
        other, run, at = adoption
        self._recorder.adopt(run, at - other.now)
        self._expander.shift(run, at - other.now)
        actions = self._machine.adopt(other, run, at)
        self._recorder.acted(None, actions, self._machine.refused)
        return actions

    def _runs_of(self, event: Event | Adoption) -> tuple[str, ...]:
        match event:
            case Submitted() | Cancelled() | Paused() | Limited() | Adoption():
                return (event.run,)
            case Expanded() | Pruned() | Counted():
                return (run_in(event.step),)
            case Progressed() | Succeeded() | Failed() | Stopped():
                run = self.runs.get(event.attempt)
                return () if run is None else (run,)
            case _:
                return ()


def run_in(step: str) -> str:
    """Return the id of a step's run."""
    return step.rpartition(":")[0]


def _steps(event: Submitted | Expanded) -> int:
    plan = event.plan if isinstance(event, Submitted) else event.patch
    return len(plan.steps) if plan is not None else 0


log = logging.getLogger("plait.driver")

Watcher = Callable[[Event, Machine, list[Action]], object]
"""Called after an event, with the machine as it then is and the actions that followed. Must not block."""


class Watchers:
    """The watchers of one machine. A watcher that raises is removed; if it watched a run, `give_up` ends the run."""

    def __init__(self, machine: Machine, give_up: Callable[[Sequence[str], Exception], None]) -> None:
        self.general: list[Watcher] = []
        """Watchers of every event."""
        self._machine, self._give_up = machine, give_up
        self.of: dict[str, list[Watcher]] = {}
        """By run."""

    def add(self, run: str, watcher: Watcher) -> None:
        """Add a watcher of the events of one run, until the run has ended."""
        self.of.setdefault(run, []).append(watcher)

    def remove(self, run: str, watcher: Watcher) -> None:
        """Remove a watcher of a run."""
        if run in self.of:
            self.of[run] = [other for other in self.of[run] if other != watcher]

    def notify(self, event: Event, runs: Iterable[str], actions: list[Action]) -> None:
        """Report an event to the general watchers, to those of `runs`, and to those of runs in which a step moved."""
        for watcher in list(self.general):  # a copy: a watcher that raises is removed meanwhile
            self._call(watcher, event, actions, None)
        if not self.of:
            return
        concerned = dict.fromkeys(runs)
        # An event may move steps of other runs too: a freed slot starts the step of another run.
        for move in self._machine.moves:
            concerned[move[1].rpartition(":")[0]] = None
        for run in concerned:
            for watcher in self.of.get(run, ()):
                self._call(watcher, event, actions, run)

    def _call(self, watcher: Watcher, event: Event, actions: list[Action], run: str | None) -> None:
        try:
            watcher(event, self._machine, actions)
        except Exception as error:
            log.exception("a watcher raised and was removed")
            if run is None:
                self.general.remove(watcher)
            else:
                self.of[run] = [other for other in self.of[run] if other is not watcher]
                self._give_up([run], error)
