"""The pump: takes events from the inbox to the journal, then to the machine, and performs what the machine decides.

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

__all__ = ["Watcher", "Watchers"]

LOOP_SLICE_S = 0.002
"""How long events are handled before the event loop's other work has its turn."""
OFFLOAD_PLAN_STEPS = 100
"""Plan size from which on entering a plan is handled on a thread, beside the event loop."""
OFFLOAD_REACHED_STEPS = 5_000
"""Number of steps that one end starts, or of branches that it joins, from which on it is handled on a thread."""
OFFLOAD_READ_CHARS = 100_000
"""Number of characters that joins read (`Machine.reads`) from which on an end is handled on a thread."""


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
    """Handles the events of one driver, one after the other. `perform` carries an action out; `write` writes what is
    urgent and resolves what waits for it."""

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
        """The event that is in hand: its actions are not all performed, or a thread has it."""
        self._concerned: tuple[str, ...] = ()
        """The runs that the event in hand concerns, if anybody watches."""
        self._thread: asyncio.Future[list[Action]] | None = None
        self._actions: Iterator[Action] = iter(())
        """Actions of the event in hand that are left to perform."""

    def step(self) -> Idle | Yield | WaitForThread:
        """Handle events until there are none, the slice is used up, or one is on a thread."""
        inbox, audience = self.inbox, self._audience
        watched = audience.general or audience.of  # nobody begins to watch while this runs
        until = perf_counter() + LOOP_SLICE_S
        while True:
            event = self._event
            handled: list[Action] | None = None
            if event is None:
                if not inbox:
                    return IDLE
                event = inbox.popleft()
                # Before the event is handled: the end of an attempt takes its entry out of `runs`.
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
        # What has happened to an adopted run stands in the other journal; here its steps only begin.
        seen = ForeignEvent(at=self._machine.now) if isinstance(event, Adoption) else event
        self._audience.tell(seen, self._concerned, actions)

    def _is_large(self, event: Event | Adoption) -> bool:
        """Whether an event takes so long that it is handled on a thread, beside the event loop."""
        if isinstance(event, Succeeded):
            # What an end reaches has to be counted, so that is asked only of a machine with many steps.
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
            return self._machine.handle(event)  # nothing is written, nor will be of what comes now
        entry = self._recorder.take_one(event)  # first: whatever the machine makes of it, a replay has it
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
    """The watchers of one machine. One that raises hears of nothing more; if it watched a run, `give_up` ends that."""

    def __init__(self, machine: Machine, give_up: Callable[[Sequence[str], Exception], None]) -> None:
        self.general: list[Watcher] = []
        """Hear of every event."""
        self._machine, self._give_up = machine, give_up
        self.of: dict[str, list[Watcher]] = {}
        """By run."""

    def add(self, run: str, watcher: Watcher) -> None:
        """Tell a watcher of the events of one run, until it has ended."""
        self.of.setdefault(run, []).append(watcher)

    def remove(self, run: str, watcher: Watcher) -> None:
        """Tell a watcher nothing more of a run."""
        if run in self.of:
            self.of[run] = [other for other in self.of[run] if other != watcher]

    def tell(self, event: Event, runs: Iterable[str], actions: list[Action]) -> None:
        """Tell of an event: the general ones, those of `runs`, and those of the runs in which something moved."""
        for watcher in list(self.general):
            self._tell(watcher, event, actions, None)
        if not self.of:
            return
        concerned = dict.fromkeys(runs)
        for move in self._machine.moves:
            concerned[move[1].rpartition(":")[0]] = None
        for run in concerned:
            for watcher in self.of.get(run, ()):
                self._tell(watcher, event, actions, run)

    def _tell(self, watcher: Watcher, event: Event, actions: list[Action], run: str | None) -> None:
        try:
            watcher(event, self._machine, actions)
        except Exception as error:
            log.exception("a watcher raised and hears of nothing more")
            if run is None:
                self.general.remove(watcher)
            else:
                self.of[run] = [other for other in self.of[run] if other is not watcher]
                self._give_up([run], error)
