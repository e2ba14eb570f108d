"""Read a model's speed from journals: attempts to fit a profile to (`fitting.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from plait.core.errors import ConfigError
from plait.core.plan import template
from plait.machine import SendOrder
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.location import Location
from plait.runtime.journal.recorded_actions import read

from .fitting import RecordedAttempt, fit

__all__ = ["Clock", "RecordedAttempt", "fit", "recorded"]

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
