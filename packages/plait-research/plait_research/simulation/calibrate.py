"""Read a model's speed from journals: attempts to fit a profile to (`fitting.py`), and sessions to simulate again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue, PrivateAttr

from plait.core.errors import ConfigError
from plait.core.events import Expanded, Submitted, event_adapter
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.plan import Plan, Step, template
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.values import Frozen
from plait.machine import SendOrder
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.location import Location
from plait.runtime.journal.recorded_actions import read

from .fitting import RecordedAttempt, fit

__all__ = ["Clock", "RecordedAttempt", "RecordedSession", "fit", "recorded"]

SOON = 0.05
"""Maximum number of seconds between a run's end and a run that follows it."""
Clock = Callable[[float], float]
"""Converts a journal's times, for instance into processor seconds."""


def _same(at: float) -> float:
    return at


def recorded(
    path: Location, runs: Collection[str] | None = None, clock: Clock = _same
) -> tuple[list[RecordedAttempt], list[float]]:
    """Return the attempts at think steps in a journal (or in some of its runs), and the seconds that workers took to
    stop an attempt.

    Raises `ConfigError` for a file that is not a journal; invalid rows are skipped.
    """
    begun: dict[int, tuple[str, str, float, bool]] = {}
    stopping: dict[int, float] = {}
    streams: dict[tuple[str, str], bool] = {}
    attempts: list[RecordedAttempt] = []
    aborts: list[float] = []
    for row in Journal(path).rows():
        try:
            event: dict[str, Any] = json.loads(row.event)
            at = clock(float(event["at"]))
            if row.kind in ("submitted", "expanded"):
                _note(event, streams)
            if row.kind in ("succeeded", "failed", "stopped") and (known := begun.pop(event["attempt"], None)):
                usage = (event if row.kind == "failed" else event["result"]).get("usage", {})
                prompt, cached, tokens = (int(usage.get(count, 0)) for count in ("prompt", "cached", "completion"))
                worker, name, began, streamed = known
                done = row.kind == "succeeded"
                attempts.append(RecordedAttempt(worker, name, began, at, prompt, cached, tokens, done, streamed))
                if (since := stopping.pop(event["attempt"], None)) is not None and row.kind == "stopped":
                    aborts.append(at - since)
            recorded_actions = read(row.actions)
            for order, run in recorded_actions.orders:
                if isinstance(order, SendOrder) and (runs is None or run in runs):
                    named = run, order.step.rpartition(":")[2].rpartition("/")[2]
                    if named in streams:  # a model call
                        begun[order.attempt] = order.worker, template(order.step), at, streams[named]
            for attempt in recorded_actions.cancelled:
                if attempt in begun:
                    stopping[attempt] = at
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError):
            continue
    return [attempt for attempt in attempts if attempt.tokens > 0 and attempt.ended > attempt.began], aborts


def _note(event: dict[str, Any], streams: dict[tuple[str, str], bool]) -> None:
    """Record which steps of a plan or a patch stream."""
    run = event.get("run") or str(event.get("step", "")).partition(":")[0]
    plan: dict[str, Any] = event.get("plan") or event.get("patch") or {}
    for step in plan.get("steps", ()):
        op: dict[str, Any] = step.get("op") or {}
        if op.get("kind") == "think":
            streams[run, step["name"].rpartition("/")[2]] = bool(op.get("stream", False))


class RecordedSession(Frozen):
    """A journal's recorded runs, for a new simulation."""

    requests: tuple[Request, ...]
    plans: tuple[Plan, ...]
    arrivals: tuple[float, ...]
    latencies: tuple[float, ...]
    """Duration of each run in seconds."""
    lengths: dict[str, int]
    """Tokens by `run-N:step`; N is the run's number by arrival."""
    prompts: dict[str, tuple[int, int]]
    """Tokens of the prompt and cached tokens of the prompt, by `run-N:step`."""
    values: dict[str, JsonValue]
    """The step's value, by `run-N:step`. It decides when a join closes early."""
    slots: dict[str, int]
    """Number of slots of each worker that had model steps."""
    makespan: float
    patches: tuple[dict[str, tuple[Plan, ...]], ...] = ()
    """For each run, the expansions of its steps by the step's name, in order."""

    def follows(self) -> dict[int, tuple[int, float]]:
        """Return the runs that were sent because another run had ended; they would have come later if it had ended
        later. The mapping has for each run's number the other run's number and the seconds between them."""
        followed: dict[int, tuple[int, float]] = {}
        ends = sorted(
            (at + took, number) for number, (at, took) in enumerate(zip(self.arrivals, self.latencies, strict=True))
        )
        free = dict.fromkeys(number for _, number in ends)
        for number, at in enumerate(self.arrivals):
            for end, other in ends:
                if other in free and other < number and at - SOON <= end <= at:
                    followed[number] = other, at - end
                    del free[other]
                    break
        return followed

    def planners(self) -> list[Planner]:
        """Return a planner for each run, which repeats the recorded plans."""
        return [_Again(plan=plan, patches=patches) for plan, patches in zip(self.plans, self.patches, strict=True)]

    @classmethod
    def read(cls, path: Path, runs: Collection[str] | None = None, clock: Clock = _same) -> RecordedSession:
        """Read a journal, or some of its runs. Raises `ConfigError` if none of them has ended."""
        came: dict[str, Submitted] = {}
        over: dict[str, float] = {}
        begun: dict[int, tuple[str, str]] = {}
        used: dict[str, Usage] = {}
        said_by: dict[str, JsonValue] = {}
        offered: dict[str, int] = {}
        slots: dict[str, int] = {}
        expanded: dict[str, dict[str, list[Plan]]] = {}
        for row in Journal(path).rows():
            event: dict[str, Any] = json.loads(row.event)
            if row.kind in ("submitted", "expanded"):
                content = event_adapter.validate_python(event)
                if isinstance(content, Submitted):
                    came[content.run] = content
                elif isinstance(content, Expanded):
                    run, _, name = content.step.partition(":")
                    patches = expanded.setdefault(run, {}).setdefault(name.rpartition("/")[2], [])
                    patches += [content.patch] if content.patch is not None else []
            elif row.kind == "succeeded" and event["attempt"] in begun:
                step, result = begun[event["attempt"]][0], event["result"]
                used[step] = Usage.model_validate(result.get("usage", {}))
                said_by[step] = result.get("value")
            elif row.kind == "worker-up":
                offered[event["worker"]] = max(1, event["slots"])
            done = read(row.actions)
            for order, _ in done.orders:
                if isinstance(order, SendOrder):
                    begun[order.attempt] = order.step, order.worker
            for run, _ in done.ended:
                over[run] = clock(float(event["at"]))
        wanted = [came_run for run, came_run in came.items() if run in over and (runs is None or run in runs)]
        whole = sorted(wanted, key=lambda submitted: submitted.at)
        if not whole:
            raise ConfigError(f"{path} has no run that ended: nothing can be compared")
        number = {submitted.run: f"run-{i}" for i, submitted in enumerate(whole)}
        named = {
            step: f"{number[run]}:{name}" for step in used for run, _, name in [step.partition(":")] if run in number
        }
        for step, worker in begun.values():
            if step.partition(":")[0] in number and used.get(step, Usage()).completion:
                slots[worker] = offered.get(worker, 1)
        came_at = {submitted.run: clock(submitted.at) for submitted in whole}
        start = came_at[whole[0].run]
        return cls(
            requests=tuple(submitted.request for submitted in whole),
            plans=tuple(submitted.plan for submitted in whole),
            arrivals=tuple(came_at[submitted.run] - start for submitted in whole),
            latencies=tuple(over[submitted.run] - came_at[submitted.run] for submitted in whole),
            lengths={name: used[step].completion for step, name in named.items()},
            prompts={name: (used[step].prompt, used[step].cached) for step, name in named.items()},
            values={name: said_by[step] for step, name in named.items()},
            slots=slots,
            makespan=max(over[submitted.run] for submitted in whole) - start,
            patches=tuple(
                {name: tuple(patches) for name, patches in expanded.get(submitted.run, {}).items()}
                for submitted in whole
            ),
        )


class _Again(Planner):
    """Repeats a planner's output in a recorded run. Steps with equal names in several scopes are served in order."""

    plan: Plan
    patches: dict[str, tuple[Plan, ...]] = {}
    _taken: Counter[str] = PrivateAttr(default_factory=Counter[str])

    def start(self, brief: PlanningContext) -> Plan:
        return self.plan

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        number = self._taken[step.name]
        self._taken[step.name] += 1
        return _Patch(self.patches.get(step.name, ())[number : number + 1])


class _Patch:
    """Gives a recorded patch when its step has ended."""

    def __init__(self, patches: Sequence[Plan]) -> None:
        self._patches = patches

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return next(iter(self._patches), None)
