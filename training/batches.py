"""Turns traces into padded batches, reproducibly and resumably.

Traces are drawn in pools; a pool is sorted by length and cut into batches of about equal token count, which
are then shuffled. So padding stays small, no trace can attend to another one, and batch number n depends on
nothing but the seed and n. This file does not know about the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .generate import Trace, draw_trace
from .vocab import PAD

POOL = 768  # traces drawn at a time
Draw = Callable[[random.Random], Trace]


class Batch(NamedTuple):
    """ids int64 and weights float32, both (rows, time); tokens counts the places that are not padding."""

    ids: Tensor
    weights: Tensor
    tokens: int


def pad(traces: list[Trace]) -> Batch:
    """One batch of the traces, padded on the right."""
    length = max(len(t.ids) for t in traces)
    ids = torch.tensor([t.ids + [PAD] * (length - len(t.ids)) for t in traces])
    weights = torch.tensor([t.weights + [0.0] * (length - len(t.weights)) for t in traces])
    return Batch(ids, weights, sum(len(t.ids) for t in traces))


def pool_batches(seed: int, number: int, batch_tokens: int, pool: int = POOL, draw: Draw = draw_trace) -> list[Batch]:
    """All batches of pool `number`, each of at most about `batch_tokens` tokens."""
    rng = random.Random(f"{seed}/{number}")
    traces = sorted((draw(rng) for _ in range(pool)), key=lambda t: len(t.ids))
    groups: list[list[Trace]] = [[]]
    for trace in traces:
        if groups[-1] and len(trace.ids) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(trace)
    rng.shuffle(groups)
    return [pad(group) for group in groups]


class Stream:
    """An endless, resumable stream of batches; `position` (pool, place in it) is its whole state."""

    def __init__(
        self,
        seed: int,
        batch_tokens: int,
        position: tuple[int, int] = (0, 0),
        pool: int = POOL,
        draw: Draw = draw_trace,
    ) -> None:
        self.seed, self.batch_tokens, self.pool, self.draw = seed, batch_tokens, pool, draw
        self.position = position
        self._batches = pool_batches(seed, position[0], batch_tokens, pool, draw)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        number, place = self.position
        if place >= len(self._batches):
            number, place = number + 1, 0
            self._batches = pool_batches(self.seed, number, self.batch_tokens, self.pool, self.draw)
        self.position = (number, place + 1)
        return self._batches[place]
