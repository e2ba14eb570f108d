"""How fast a model is on a machine, fitted to recorded attempts.

An engine decodes all its sequences together, a token of each in a step. A step takes `fixed + each * sequences`
seconds, `streamed` more for each sequence whose text is sent while it is written, and `context` more for each token
that stands before those; reading a prompt takes `read` seconds a token and holds decoding up meanwhile. So an attempt
takes as many steps as it has tokens, each with the sequences that were there at that time, the reading of all prompts
that came meanwhile, and `dispatch` seconds on the way. This is linear in the figures, and non-negative least squares of
relative errors find them; single slow attempts count less, and where many sequences share the engine each counts less,
so that every second of the engine counts once.
"""

from __future__ import annotations

import importlib
import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import ConfigError

from .engine_profile import EngineProfile, machine

_LEAST = 20
"""Attempts without which nothing is fitted."""
_KEPT = 512
"""Lengths of a template that are kept."""
_ROUNDS = 12
"""The steps in an interval, and the weights of slow attempts, follow from the figures, and these from those."""
_ODD = 0.1
"""Relative error beyond which an attempt counts less."""


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
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
    streams: bool = False
    """Its text was sent while it was written."""

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
    streaming: Any
    """How many of these stream."""
    context: Any
    """Tokens of context of the attempts in it."""
    unread: Any
    """Prompt tokens that came at its beginning and no cache held."""
    new: Any
    """Whether it is the first of a worker."""
    inside: Any
    """Sparse, shape (attempts, intervals): 1 while an attempt was running."""

    def played(
        self, fixed: float, per_sequence: float, streamed: float, context: float, read: float
    ) -> tuple[Any, Any]:
        """Return the engine's steps in each interval and its prompt tokens. Decoding waits
        until prompts have been read, also those that came in earlier intervals."""
        pace = fixed + per_sequence * self.sequences + streamed * self.streaming + context * self.context
        held: list[float] = []
        debt = 0.0
        for seconds, unread, new in zip(self.seconds.tolist(), self.unread.tolist(), self.new.tolist(), strict=True):
            debt = read * unread + (0.0 if new else debt)
            held.append(min(debt, seconds))
            debt -= held[-1]
        reading: Any = np.array(held)
        return (self.seconds - reading) / np.maximum(pace, 1e-12), reading / read if read else self.unread


def fit(attempts: Sequence[RecordedAttempt], aborts: Sequence[float] = (), *, model: str) -> EngineProfile:
    """Fit a profile to recorded attempts. Raises `ConfigError` for too few of them, and without scipy."""
    try:
        optimize: Any = importlib.import_module("scipy.optimize")
    except ImportError:
        raise ConfigError("calibration needs scipy: install 'plait[search]'") from None
    if len(attempts) < _LEAST:
        raise ConfigError(
            f"{len(attempts)} recorded attempts at model steps are too few to fit anything to: record at least "
            f"{_LEAST}, of several widths (`plait simulate calibrate --probe` does)"
        )
    line = _timeline(attempts)
    tokens: Any = np.array([attempt.tokens for attempt in attempts], float)
    whole: Any = np.array([attempt.ended - attempt.began for attempt in attempts])
    alone: Any = np.ones(len(attempts))
    fitted: Any = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    error: Any = np.zeros(len(attempts))
    for _ in range(_ROUNDS):
        fixed, per_sequence, streamed, context, read, _dispatch = fitted.tolist()
        made, came = line.played(fixed, per_sequence, streamed, context, read)
        scale = tokens / np.maximum(line.inside @ made, 1e-12)
        sequences, streaming, before = (
            scale * (line.inside @ (made * what)) for what in (line.sequences, line.streaming, line.context)
        )
        columns = np.column_stack([tokens, sequences, streaming, before, line.inside @ came, alone])
        weights = np.sqrt(tokens / np.maximum(sequences, tokens)) / whole / (1.0 + (error / _ODD) ** 2) ** 0.25
        size: Any = np.maximum(np.abs(columns).max(axis=0), 1e-12)
        fitted = optimize.nnls(columns / size * weights[:, None], whole * weights)[0] / size
        error = columns @ fitted / whole - 1.0
    fixed, per_sequence, streamed, context, read, dispatch = fitted.tolist()
    return EngineProfile(
        model=Path(model).name,
        machine=machine(),
        fixed=max(fixed, 1e-4 * _median(whole / tokens)),
        each=per_sequence,
        streamed=streamed,
        context=context,
        typical=float(np.mean([attempt.context for attempt in attempts])),
        read=read,
        dispatch=dispatch,
        abort=sorted(aborts)[len(aborts) // 2] if aborts else 0.002,
        attempts=len(attempts),
        error=_median(np.abs(error)),
        widest=int(line.sequences.max()),
        lengths=_lengths(attempts),
    )


def _median(values: Any) -> float:
    return statistics.median(values.tolist())


def _timeline(attempts: Sequence[RecordedAttempt]) -> _Timeline:
    sparse: Any = importlib.import_module("scipy.sparse")
    rows: list[int] = []
    columns: list[int] = []
    starts: list[int] = []
    seconds: list[float] = []
    new: list[bool] = []
    order: list[int] = []
    for worker in sorted({attempt.worker for attempt in attempts}):
        here = [i for i, attempt in enumerate(attempts) if attempt.worker == worker]
        times = sorted({time for i in here for time in (attempts[i].began, attempts[i].ended)})
        base = len(seconds)
        seconds += [b - a for a, b in pairwise(times)]
        new += [True] + [False] * (len(times) - 2)
        for i in here:
            low, high = (base + bisect_left(times, time) for time in (attempts[i].began, attempts[i].ended))
            rows += [i] * (high - low)
            columns += range(low, high)
            order.append(i)
            starts.append(low)
    shape = len(attempts), len(seconds)
    inside = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    figures: Any = np.array([(1.0, attempt.streams, attempt.context) for attempt in attempts])
    sequences, streaming, context = figures.T @ inside
    if (streaming == sequences).all():  # if all stream, the cost of streaming cannot be separated from the rest
        streaming = np.zeros(len(seconds))
    unread = [max(0, attempts[i].prompt - attempts[i].cached) for i in order]
    return _Timeline(
        seconds=np.array(seconds),
        sequences=sequences,
        streaming=streaming,
        context=context,
        unread=np.bincount(starts, unread, len(seconds)),
        new=np.array(new),
        inside=inside,
    )


def _lengths(attempts: Iterable[RecordedAttempt]) -> dict[str, tuple[int, ...]]:
    tokens: dict[str, list[int]] = {}
    for attempt in attempts:
        if attempt.done:
            tokens.setdefault(attempt.template, []).append(attempt.tokens)
    kept: dict[str, tuple[int, ...]] = {}
    for name, lengths in tokens.items():
        lengths.sort()
        stride = max(1, math.ceil(len(lengths) / _KEPT))
        kept[name] = tuple(lengths[stride // 2 :: stride])
    return kept
