"""Who hears of a driver's events: of all of them, or of those of one run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from ...core.events import Action, Event
from ...machine import Machine

__all__ = ["Watcher", "Watchers"]

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
