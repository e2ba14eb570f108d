"""Fits how fast a model is on a machine to recorded runs.

An engine decodes all its sequences together, a token of each in a step. A step takes `fixed + each * sequences`
seconds, and `context` more for each token that stands before those; reading a prompt takes `read` seconds a token and
holds decoding up meanwhile. A journal says when attempts began and ended and how many tokens they had, and so how many
sequences there were at any time. The figures, and the seconds from dispatch to the engine, are those with which all
attempts come closest to the tokens that they really had (least squares of relative errors, robust against single slow
ones).
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue, PrivateAttr

from ...core.errors import ConfigError
from ...core.events import Expanded, Submitted, event_adapter
from ...core.interfaces import Brief, Planner, Reader
from ...core.lengths import template
from ...core.plan import Plan, Request, Step
from ...core.result import Result, Usage
from ...core.values import Frozen
from ..journal.journal import Journal
from .profile import Profile, machine

__all__ = ["Recorded", "Session", "fit", "recorded"]

_LEAST = 20
"""Attempts without which nothing is fitted."""
SOON = 0.05
"""Seconds within which a run follows the end of another."""
_KEPT = 512
"""Lengths of a template that are kept."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One attempt at a think step, as a journal has it. Times in seconds on the journal's clock."""

    worker: str
    template: str
    began: float
    ended: float
    prompt: int
    cached: int
    tokens: int
    done: bool
    """It came to its end by itself."""

    @property
    def context(self) -> float:
        """Tokens before the one that was being generated, in the mean over its time."""
        return self.prompt + self.tokens / 2


@dataclass(frozen=True, slots=True)
class _Timeline:
    """The time of all workers, cut where an attempt begins or ends."""

    seconds: Any
    """Of each interval, shape (intervals,)."""
    sequences: Any
    """Attempts in it."""
    context: Any
    """Tokens of context of the attempts in it."""
    unread: Any
    """Prompt tokens that came at its beginning and no cache held."""
    inside: Any
    """Sparse, shape (attempts, intervals): 1 where an attempt was under way."""
    first: Any
    """Of each attempt, its first interval."""


def recorded(path: Path, runs: Collection[str] | None = None) -> tuple[list[Recorded], list[float]]:
    """Return the attempts at think steps in a journal (or of some runs of it), and the seconds that workers took to
    stop one.

    Raises `ConfigError` for a file that is no journal; rows that make no sense are passed over.
    """
    begun: dict[int, tuple[str, str, float]] = {}
    stopping: dict[int, float] = {}
    attempts: list[Recorded] = []
    aborts: list[float] = []
    for row in Journal(path).rows():
        try:
            event: dict[str, Any] = json.loads(row.event)
            at = float(event["at"])
            if row.kind in ("succeeded", "failed", "stopped") and (known := begun.pop(event["attempt"], None)):
                usage = event["usage"] if row.kind == "failed" else event["result"].get("usage", {})
                prompt, cached, tokens = (int(usage.get(each, 0)) for each in ("prompt", "cached", "completion"))
                worker, name, began = known
                attempts.append(Recorded(worker, name, began, at, prompt, cached, tokens, row.kind == "succeeded"))
                if (since := stopping.pop(event["attempt"], None)) is not None and row.kind == "stopped":
                    aborts.append(at - since)
            for action in json.loads(row.actions or "[]"):
                if action["kind"] == "dispatch":
                    op = action["job"]["op"]
                    ours = runs is None or action["job"]["run"] in runs
                    if ours and (isinstance(op, str) or op.get("kind") == "think"):
                        begun[action["job"]["attempt"]] = action["worker"], template(action["job"]["step"]), at
                elif action["kind"] == "cancel" and action.get("attempt") in begun:
                    stopping[action["attempt"]] = at
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return [each for each in attempts if each.tokens > 0 and each.ended > each.began], aborts


def fit(attempts: Sequence[Recorded], aborts: Sequence[float] = (), *, model: str) -> Profile:
    """Fit a profile to recorded attempts. Raises `ConfigError` for too few of them, and without scipy."""
    try:
        optimize: Any = importlib.import_module("scipy.optimize")
    except ImportError:
        raise ConfigError("calibration needs scipy: install 'plait[search]'") from None
    if len(attempts) < _LEAST:
        raise ConfigError(
            f"{len(attempts)} recorded attempts at model steps are too few to fit anything to: record at least "
            f"{_LEAST}, of several widths (`plait calibrate --probe` does)"
        )
    line = _timeline(attempts)
    tokens: Any = np.array([each.tokens for each in attempts], float)
    whole: Any = np.array([each.ended - each.began for each in attempts])

    def expected(logs: Any) -> Any:
        fixed, each, read, dispatch, context = np.exp(logs)
        step = fixed + each * line.sequences + context * line.context
        decoding = np.maximum(0.0, line.seconds - read * line.unread)
        return line.inside @ (decoding / step) - dispatch / step[line.first]

    long = tokens >= _median(tokens)  # of short answers most is the reading of the prompt
    pace = _median(whole[long] / tokens[long])
    wide = _median(line.sequences[line.sequences > 0])
    typical = float(np.mean([each.context for each in attempts]))
    low = [pace * 1e-4, pace * 1e-6, pace * 1e-6, pace * 1e-3, pace * 1e-6 / typical]
    high = [pace * 10, pace * 10, pace, pace * 50, pace / typical]
    # From several beginnings: where prompts take long the nearest minimum may be one that explains nothing.
    starts = [
        (pace * share, pace * (1 - share) / wide, pace * read, pace * wait, pace * (1 - share) / wide / typical / 10)
        for share in (0.2, 0.5, 0.9)
        for read, wait in ((0.01, 1.0), (0.1, 3.0))
    ]
    found: Any = min(
        (
            optimize.least_squares(
                lambda logs: (expected(logs) - tokens) / np.maximum(tokens, 4.0),  # pyright: ignore[reportUnknownLambdaType]
                np.log(start),
                bounds=(np.log(low), np.log(high)),
                loss="soft_l1",
                f_scale=0.1,
            )
            for start in starts
        ),
        key=lambda each: each.cost,
    )
    best: Any = np.exp(found.x)
    fixed, each, read, dispatch, context = best.tolist()
    return Profile(
        model=Path(model).name,
        machine=machine(),
        fixed=fixed,
        each=each,
        context=context,
        typical=typical,
        read=read,
        dispatch=dispatch,
        abort=sorted(aborts)[len(aborts) // 2] if aborts else 0.002,
        attempts=len(attempts),
        error=_median(np.abs(expected(found.x) - tokens) / tokens),
        widest=int(line.sequences.max()),
        lengths=_lengths(attempts),
    )


def _median(values: Any) -> float:
    return statistics.median(values.tolist())


def _timeline(attempts: Sequence[Recorded]) -> _Timeline:
    sparse: Any = importlib.import_module("scipy.sparse")
    rows: list[int] = []
    columns: list[int] = []
    seconds: list[float] = []
    sequences: list[int] = []
    unread: list[float] = []
    context: list[float] = []
    first = [0] * len(attempts)
    for worker in sorted({each.worker for each in attempts}):
        here = [i for i, each in enumerate(attempts) if each.worker == worker]
        times = sorted({time for i in here for time in (attempts[i].began, attempts[i].ended)})
        base = len(seconds)
        seconds += [b - a for a, b in zip(times, times[1:], strict=False)]
        sequences += [0] * (len(times) - 1)
        unread += [0.0] * (len(times) - 1)
        context += [0.0] * (len(times) - 1)
        for i in here:
            low, high = (base + bisect_left(times, each) for each in (attempts[i].began, attempts[i].ended))
            first[i] = low
            unread[low] += max(0, attempts[i].prompt - attempts[i].cached)
            rows += [i] * (high - low)
            columns += range(low, high)
            for k in range(low, high):
                sequences[k] += 1
                context[k] += attempts[i].context
    shape = len(attempts), len(seconds)
    inside = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    counts: Any = np.array(sequences, float)
    return _Timeline(np.array(seconds), counts, np.array(context), np.array(unread), inside, np.array(first))


def _lengths(attempts: Iterable[Recorded]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for each in attempts:
        if each.done:
            found.setdefault(each.template, []).append(each.tokens)
    kept: dict[str, tuple[int, ...]] = {}
    for name, lengths in found.items():
        lengths.sort()
        stride = max(1, math.ceil(len(lengths) / _KEPT))
        kept[name] = tuple(lengths[stride // 2 :: stride])
    return kept


class Session(Frozen):
    """What a journal recorded, to be simulated again."""

    requests: tuple[Request, ...]
    plans: tuple[Plan, ...]
    arrivals: tuple[float, ...]
    latencies: tuple[float, ...]
    """Seconds of each run."""
    lengths: dict[str, int]
    """Tokens by `run-N:step`, N being a run's number by arrival."""
    prompts: dict[str, tuple[int, int]]
    """By the same: tokens of the prompt, and how many of them a cache held."""
    values: dict[str, JsonValue]
    """By the same: what the step said. A join that closes early closes by it."""
    slots: dict[str, int]
    """Of each worker that had model steps."""
    makespan: float
    patches: tuple[dict[str, tuple[Plan, ...]], ...] = ()
    """Of each run: what its steps expanded into, by the step's name, in order."""

    def follows(self) -> dict[int, tuple[int, float]]:
        """Return the runs that came as soon as another had ended, which were sent for that reason: they would have come
        later if that had ended later. By their numbers: which, and how many seconds after it."""
        found: dict[int, tuple[int, float]] = {}
        ends = sorted(
            (at + took, number) for number, (at, took) in enumerate(zip(self.arrivals, self.latencies, strict=True))
        )
        free = dict.fromkeys(number for _, number in ends)
        for number, at in enumerate(self.arrivals):
            for end, other in ends:
                if other in free and other < number and at - SOON <= end <= at:
                    found[number] = other, at - end
                    del free[other]
                    break
        return found

    def slowed(self, by: float) -> Session:
        """Return it with all times so many times as long."""
        return self.model_copy(
            update={
                "arrivals": tuple(by * each for each in self.arrivals),
                "latencies": tuple(by * each for each in self.latencies),
                "makespan": by * self.makespan,
            }
        )

    def planners(self) -> list[Planner]:
        """Return a planner for each run, which says again what was said then."""
        return [_Again(plan=plan, patches=patches) for plan, patches in zip(self.plans, self.patches, strict=True)]

    @classmethod
    def read(cls, path: Path, runs: Collection[str] | None = None) -> Session:
        """Read a journal, or some runs of it. Raises `ConfigError` if no run of it has ended."""
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
                said = event_adapter.validate_python(event)
                if isinstance(said, Submitted):
                    came[said.run] = said
                elif isinstance(said, Expanded):
                    run, _, name = said.step.partition(":")
                    patches = expanded.setdefault(run, {}).setdefault(name.rpartition("/")[2], [])
                    patches += [said.patch] if said.patch is not None else []
            elif row.kind == "succeeded" and event["attempt"] in begun:
                step, result = begun[event["attempt"]][0], event["result"]
                used[step] = Usage.model_validate(result.get("usage", {}))
                said_by[step] = result.get("value")
            elif row.kind == "worker-up":
                offered[event["worker"]] = max(1, event["slots"])
            for action in json.loads(row.actions or "[]"):
                if action["kind"] == "dispatch":
                    begun[action["job"]["attempt"]] = action["job"]["step"], action["worker"]
                elif action["kind"] == "finish":
                    over[action["run"]] = float(event["at"])
        wanted = [each for run, each in came.items() if run in over and (runs is None or run in runs)]
        whole = sorted(wanted, key=lambda each: each.at)
        if not whole:
            raise ConfigError(f"{path} has no run that ended: nothing can be compared")
        number = {each.run: f"run-{i}" for i, each in enumerate(whole)}
        named = {
            step: f"{number[run]}:{name}" for step in used for run, _, name in [step.partition(":")] if run in number
        }
        for step, worker in begun.values():
            if step.partition(":")[0] in number and used.get(step, Usage()).completion:
                slots[worker] = offered.get(worker, 1)
        start = whole[0].at
        return cls(
            requests=tuple(each.request for each in whole),
            plans=tuple(each.plan for each in whole),
            arrivals=tuple(each.at - start for each in whole),
            latencies=tuple(over[each.run] - each.at for each in whole),
            lengths={name: used[step].completion for step, name in named.items()},
            prompts={name: (used[step].prompt, used[step].cached) for step, name in named.items()},
            values={name: said_by[step] for step, name in named.items()},
            slots=slots,
            makespan=max(over[each.run] for each in whole) - start,
            patches=tuple(
                {name: tuple(patches) for name, patches in expanded.get(each.run, {}).items()} for each in whole
            ),
        )


class _Again(Planner):
    """Says what a planner said in a recorded run. Steps of one name in several scopes are served in their order."""

    plan: Plan
    patches: dict[str, tuple[Plan, ...]] = {}
    _taken: Counter[str] = PrivateAttr(default_factory=Counter[str])

    def start(self, brief: Brief) -> Plan:
        return self.plan

    def reader(self, step: Step, brief: Brief) -> Reader:
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
