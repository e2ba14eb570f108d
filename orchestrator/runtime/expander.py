"""Asks planners for plans and patches, for whoever runs a machine.

Holds a run's planner and the readers of its expanding steps; what planners say, or raise, becomes events. It has no
clock and no loop (times are given to it), and does not know what becomes of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.base import Brief, Planner, Reader
from ..core.errors import PlaitError, PlannerError, as_failure
from ..core.events import Expand, Expanded, Submitted
from ..core.ir import Plan
from ..core.machine import Machine
from ..core.view import View


@dataclass(slots=True)
class _Open:
    """A run whose steps may expand."""

    planner: Planner
    brief: Brief
    readers: dict[str, tuple[int, Reader | None]] = field(default_factory=dict[str, tuple[int, Reader | None]])
    """By step id, with the attempt that is read; `None` for a reader that has raised and is not asked again."""


class Expander:
    """The planners of all runs under way."""

    def __init__(self) -> None:
        self._runs: dict[str, _Open] = {}

    def start(self, run: str, planner: Planner, brief: Brief, at: float) -> Submitted:
        """Ask the planner for its first plan and return the event that submits it.

        Raises what the planner raised if that is a `PlaitError`, else `PlannerError`. Nothing is kept of such a run.
        """
        try:
            plan = planner.start(brief)
            if not isinstance(plan, Plan):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PlannerError(f"{type(planner).__name__} planned a {type(plan).__name__}, which is no Plan")
        except Exception as error:
            raise _of_planner(planner, "start", error) from error
        self._runs[run] = _Open(planner, brief)
        return Submitted(at=at, run=run, request=brief.request, plan=plan)

    def expand(self, action: Expand, machine: Machine, at: float) -> list[Expanded]:
        """Feed a step's reader and return what it says, in order; after the step's result the last event closes it.

        Whatever the planner raises is an event too, and ends the step. News of a step that is over gives nothing.
        """
        step = View(machine).step(action.step)
        if step is None:
            return []
        opened = self._runs.get(step.run)
        if opened is None:
            message = f"run {step.run} was submitted without a planner, so {action.step} has nothing to expand into"
            return [_failed(action, at, PlannerError(message))]
        attempt, reader = opened.readers.get(action.step, (-1, None))
        if attempt > action.attempt or (attempt == action.attempt and reader is None):
            return []
        try:
            if reader is None or attempt != action.attempt:
                reader = opened.planner.reader(step.plan, opened.brief)
                opened.readers[action.step] = (action.attempt, reader)
            said = _read(reader, action, at)
        except Exception as error:
            opened.readers[action.step] = (action.attempt, None)
            return [_failed(action, at, _of_planner(opened.planner, f"reader of {step.plan.name!r}", error))]
        if action.result is not None:
            del opened.readers[action.step]
        return said

    def forget(self, run: str) -> None:
        """Drop a run that is over."""
        self._runs.pop(run, None)


def _read(reader: Reader, action: Expand, at: float) -> list[Expanded]:
    said: list[Expanded] = []
    if action.delta is not None:
        patches: Sequence[Plan] = reader.feed(action.delta)
        said += [Expanded(at=at, step=action.step, attempt=action.attempt, patch=_plan(patch)) for patch in patches]
    if action.result is not None:
        patch = reader.close(action.result)
        last = None if patch is None else _plan(patch)
        said.append(Expanded(at=at, step=action.step, attempt=action.attempt, patch=last, closed=True))
    return said


def _plan(patch: object) -> Plan:
    if not isinstance(patch, Plan):
        raise PlannerError(f"its reader returned a {type(patch).__name__}, which is no Plan")
    return patch


def _failed(action: Expand, at: float, error: PlaitError) -> Expanded:
    return Expanded(at=at, step=action.step, attempt=action.attempt, failure=as_failure(error))


def _of_planner(planner: Planner, what: str, error: Exception) -> PlaitError:
    """Return an error of the tree for what a planner's code raised."""
    if isinstance(error, PlaitError):
        return error
    return PlannerError(f"{type(planner).__name__} raised {type(error).__name__} in its {what}: {error}")
