"""Recorded runs as rows, and as a table by request and planner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from plait.core.ops import Plugin
from plait.runtime.plugins.spec import spelled


class RouteRow(NamedTuple):
    """One recorded run."""

    text: str
    planner: Plugin
    right: float
    """1 or 0; between them for the mean of several runs."""
    tokens: float
    answer: str | None = None
    """The text of its answer, where it may be read."""
    agreed: float | None = None
    """The share of the votes that the answer had, if there was a vote."""


class RouteOutcome(NamedTuple):
    """What a way to choose comes to, in the mean over requests."""

    right: float
    tokens: float


Routed = dict[str, tuple[RouteOutcome, dict[str, float]]]
"""By request: what came of it, and the chance that each tier was the last."""
Table = dict[str, dict[str, RouteOutcome]]
"""By request and tier: means over the runs of that request."""


def key_of(planner: Plugin) -> str:
    """Return a planner as it is written on a command line."""
    return spelled(planner.model_copy(update={"options": dict(sorted(planner.options.items()))}))


def table_of(rows: Iterable[RouteRow]) -> Table:
    """Return the runs by request and planner."""
    runs: dict[str, dict[str, list[RouteRow]]] = {}
    for row in rows:
        runs.setdefault(row.text, {}).setdefault(key_of(row.planner), []).append(row)
    return {text: {key: mean_of(same) for key, same in row.items()} for text, row in runs.items()}


def mean_of(rows: Sequence[RouteRow] | Sequence[RouteOutcome]) -> RouteOutcome:
    """Return the mean of several outcomes."""
    return RouteOutcome(float(np.mean([row.right for row in rows])), float(np.mean([row.tokens for row in rows])))


def followed(outcomes: Mapping[str, RouteOutcome], keys: Sequence[str]) -> tuple[RouteOutcome, dict[str, float]]:
    """Return the outcome of an order of tiers on one request, and the probability that each was the last."""
    left, right, tokens = 1.0, 0.0, 0.0
    last: dict[str, float] = {}
    for place, key in enumerate(keys):
        outcome = outcomes[key]
        right += left * outcome.right
        tokens += left * outcome.tokens
        last[key] = left * (1.0 if place == len(keys) - 1 else outcome.right)
        left *= 1.0 - outcome.right
    return RouteOutcome(right, tokens), last


def read(outcomes: Mapping[str, RouteOutcome], first: str, stays: str) -> tuple[RouteOutcome, dict[str, float]]:
    """Return the outcome of a first answer that was read, if the answer of `stays` stays."""
    right, tokens = outcomes[stays]
    return RouteOutcome(right, tokens + (0.0 if stays == first else outcomes[first].tokens)), {stays: 1.0}
