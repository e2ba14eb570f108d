"""What policies make of the news of their runs: stops, hedges, and times at which they want to be asked again."""

from __future__ import annotations

from ..core.errors import RAISED, PluginError
from ..core.events import Event
from ..core.interfaces import Hedge, Stop
from ..core.values import writable
from .ready_queue import ReadyQueue
from .records import Node, Records, Run
from .slots import Slots
from .steps import Steps
from .views import StepView, View

_SOONEST = 0.001
"""Seconds until a policy is asked again at the soonest: one that always asks for now must not stop the world."""


class Reviews:
    """Asks policies to review their runs. The layer above `steps.py`."""

    def __init__(self, records: Records, queue: ReadyQueue, slots: Slots, steps: Steps) -> None:
        self.hedges: list[tuple[Run, Hedge]] = []
        """Hedges that are wished for, to be made after free slots are filled."""
        self._records = records
        self._queue = queue
        self._slots = slots
        self._steps = steps

    def begin(self, run: Run) -> None:
        """Ask a new run's policies when they want to look at it first."""
        for policy in run.reviewers:
            try:
                asked = policy.first_look()
                after = None if asked is None else _time(asked)
            except RAISED as error:
                self._steps.break_run(run, policy, error)
                return
            if after is not None:
                self._wake(run, self._records.now + after)

    def review(self, event: Event, run: Run, subject: Node | None) -> None:
        """Ask a run's policies what follows from an event, and do so."""
        about = StepView(subject) if subject is not None else None
        for policy in run.reviewers:
            try:
                wishes = list(policy.review(event, View(self._records, self._queue, about, run.id)))
                times = [_time(wish.at) for wish in wishes if not isinstance(wish, Stop | Hedge)]
            except RAISED as error:
                self._steps.break_run(run, policy, error)
                break
            for wish in wishes:
                if not isinstance(wish, Stop | Hedge):
                    continue
                node = self._records.nodes.get(wish.step)
                if node is None or node.run is not run:
                    self._steps.break_run(run, policy, PluginError(_no_step(wish.step, run)))
                    break
                if isinstance(wish, Hedge):
                    self.hedges.append((run, wish))
                elif not node.ended:
                    node.merged_into = wish.merged_into
                    self._steps.cancel(node, writable(str(wish.reason)))
            if times:
                self._wake(run, min(times))
            self._steps.spread()

    def _wake(self, run: Run, at: float) -> None:
        """Review a run at a time; of several wishes the earliest counts."""
        at = max(at, self._records.now + _SOONEST)
        if run.wake is None or at < run.wake:
            run.wake = at
            self._slots.timers.add(at, "review", run)


def _time(asked: float) -> float:
    """Return the time that a policy asks for, in seconds. Raises `ValueError` for NaN."""
    at = float(asked)
    if at != at:
        raise ValueError("it asks to be woken at NaN, which is no time")
    return at


def _no_step(given: str, run: Run) -> str:
    """Say that a policy's order names no step of its run, and what the id may have been meant to be."""
    meant = [repr(node.id) for node in run.nodes if node.step.name == given]
    hint = f"; did you mean {' or '.join(meant[:2])}?" if meant else ""
    return f"it stops or hedges {given!r}, which is the id of no step of the run {run.id!r}{hint} (an id is `step.id`)"
