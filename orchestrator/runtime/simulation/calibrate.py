"""Fits how fast a model is on a machine to recorded runs.

An engine decodes all its sequences together, a token of each in a step. A step takes `fixed + each * sequences`
seconds; reading a prompt takes `read` seconds a token and holds decoding up meanwhile. A journal says when attempts
began and ended and how many tokens they had, and so how many sequences there were at any time. The three figures, and
the seconds from dispatch to the engine, are those with which all attempts come closest to the tokens that they really
had (least squares of relative errors, robust against single slow ones).
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ConfigError
from ...core.events import Submitted, event_adapter
from ...core.plan import Plan, Request
from ...core.values import Frozen
from ..journal.journal import Journal
from .profile import Profile, machine, template

__all__ = ["Recorded", "Session", "fit", "recorded"]

_LEAST = 20
"""Attempts without which nothing is fitted."""
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


@dataclass(frozen=True, slots=True)
class _Timeline:
    """The time of all workers, cut where an attempt begins or ends."""

    seconds: Any
    """Of each interval, shape (intervals,)."""
    sequences: Any
    """Attempts in it."""
    unread: Any
    """Prompt tokens that came at its beginning and no cache held."""
    inside: Any
    """Sparse, shape (attempts, intervals): 1 where an attempt was under way."""
    first: Any
    """Of each attempt, its first interval."""


def recorded(path: Path) -> tuple[list[Recorded], list[float]]:
    """Return the attempts at think steps in a journal, and the seconds that workers took to stop one.

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
                    if isinstance(op, str) or op.get("kind") == "think":
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
        fixed, each, read, dispatch = np.exp(logs)
        step = fixed + each * line.sequences
        decoding = np.maximum(0.0, line.seconds - read * line.unread)
        return line.inside @ (decoding / step) - dispatch / step[line.first]

    pace = _median(whole / tokens)
    wide = _median(line.sequences[line.sequences > 0])
    guess: Any = np.log([pace / 2, pace / 2 / wide, pace / 100, pace])
    low, high = [pace * 1e-4, pace * 1e-6, pace * 1e-6, pace * 1e-3], [pace * 10, pace * 10, pace, pace * 50]
    found = optimize.least_squares(
        lambda logs: (expected(logs) - tokens) / np.maximum(tokens, 4.0),  # pyright: ignore[reportUnknownLambdaType]
        guess,
        bounds=(np.log(low), np.log(high)),
        loss="soft_l1",
        f_scale=0.1,
    )
    best: Any = np.exp(found.x)
    fixed, each, read, dispatch = best.tolist()
    return Profile(
        model=Path(model).name,
        machine=machine(),
        fixed=fixed,
        each=each,
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
    first = [0] * len(attempts)
    for worker in sorted({each.worker for each in attempts}):
        here = [i for i, each in enumerate(attempts) if each.worker == worker]
        times = sorted({time for i in here for time in (attempts[i].began, attempts[i].ended)})
        base = len(seconds)
        seconds += [b - a for a, b in zip(times, times[1:], strict=False)]
        sequences += [0] * (len(times) - 1)
        unread += [0.0] * (len(times) - 1)
        for i in here:
            low, high = (base + bisect_left(times, each) for each in (attempts[i].began, attempts[i].ended))
            first[i] = low
            unread[low] += max(0, attempts[i].prompt - attempts[i].cached)
            rows += [i] * (high - low)
            columns += range(low, high)
            for k in range(low, high):
                sequences[k] += 1
    shape = len(attempts), len(seconds)
    inside = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    return _Timeline(np.array(seconds), np.array(sequences, float), np.array(unread), inside, np.array(first))


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
    makespan: float

    @classmethod
    def read(cls, path: Path, runs: Collection[str] | None = None) -> Session:
        """Read a journal, or some runs of it. Raises `ConfigError` if no run of it has ended."""
        came: dict[str, Submitted] = {}
        over: dict[str, float] = {}
        begun: dict[int, str] = {}
        lengths: dict[str, int] = {}
        for row in Journal(path).rows():
            event: dict[str, Any] = json.loads(row.event)
            if row.kind == "submitted":
                submitted = event_adapter.validate_python(event)
                assert isinstance(submitted, Submitted)
                came[submitted.run] = submitted
            elif row.kind == "succeeded" and event["attempt"] in begun:
                lengths[begun[event["attempt"]]] = event["result"].get("usage", {}).get("completion", 0)
            for action in json.loads(row.actions or "[]"):
                if action["kind"] == "dispatch":
                    begun[action["job"]["attempt"]] = action["job"]["step"]
                elif action["kind"] == "finish":
                    over[action["run"]] = float(event["at"])
        wanted = [each for run, each in came.items() if run in over and (runs is None or run in runs)]
        whole = sorted(wanted, key=lambda each: each.at)
        if not whole:
            raise ConfigError(f"{path} has no run that ended: nothing can be compared")
        number = {each.run: f"run-{i}" for i, each in enumerate(whole)}
        named = {
            f"{number[run]}:{name}": tokens
            for step, tokens in lengths.items()
            for run, _, name in [step.partition(":")]
            if run in number
        }
        start = whole[0].at
        return cls(
            requests=tuple(each.request for each in whole),
            plans=tuple(each.plan for each in whole),
            arrivals=tuple(each.at - start for each in whole),
            latencies=tuple(over[each.run] - each.at for each in whole),
            lengths=named,
            makespan=max(over[each.run] for each in whole) - start,
        )
