"""Advantages of rollouts within their groups, whatever number of sequences a rollout has.

GRPO (arXiv 2402.03300) compares *rollouts*: a trainer that takes each sequence for a rollout of its own gives one of
many threads more weight in the mean of its group, and so other advantages. So they are computed here and kept in each
record (`Record.advantage`) and, where threads are judged by themselves, in its segments (`WeightsSegment.advantage`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal

from .record import Record

Credit = Literal["rollout", "thread"]
_PRIOR = 2.0
"""How many threads of average success the baseline of a thread begins with."""


def grpo_advantages(records: Iterable[Record], epsilon: float = 1e-6) -> dict[str, float]:
    """Return GRPO's advantage of each judged rollout: its reward less the mean of its group, divided by the group's
    standard deviation plus `epsilon` (verl has 1e-6, TRL 1e-4).

    A rollout that is alone in its group keeps its reward, as in verl.
    """
    rewards = {
        record.rollout: (record.group, record.reward)
        for record in records
        if record.judged and record.reward is not None
    }
    groups: dict[str, list[float]] = {}
    for group, reward in rewards.values():
        groups.setdefault(group, []).append(reward)
    out: dict[str, float] = {}
    for rollout, (group, reward) in rewards.items():
        of = groups[group]
        mean, spread = (fmean(of), stdev(of) + epsilon) if len(of) > 1 else (0.0, 1.0 + epsilon)
        out[rollout] = (reward - mean) / spread
    return out


def weighed(
    rollouts: Iterable[Sequence[Record]], credit: Credit = "rollout", epsilon: float = 1e-6
) -> list[list[Record]]:
    """Return rollouts with their advantages; all of a group have to be among them. What has no reward gets none.

    With `credit="rollout"` every token of a rollout has its rollout's advantage. With `"thread"` a thread that has a
    reward of its own (`Record.own`) has another one: that reward against those of the group's threads that read the
    same prompt (few threads are shrunk towards the mean of all), divided by its root mean square over all threads.
    Parents and joins keep the rollout's.
    """
    rows = [list(rollout) for rollout in rollouts]
    whole = grpo_advantages((record for row in rows for record in row), epsilon)
    threads = _own([record for row in rows for record in row]) if credit == "thread" else {}
    return [[_with(record, whole.get(record.rollout), threads) for record in row] for row in rows]


def _with(record: Record, advantage: float | None, threads: dict[tuple[str, int], float]) -> Record:
    own = threads.get((record.rollout, record.index))
    segments = record.segments
    if own is not None:
        segments = tuple(segment.model_copy(update={"advantage": own}) for segment in segments)
    return record.model_copy(update={"advantage": advantage, "segments": segments})


def _own(records: Sequence[Record]) -> dict[tuple[str, int], float]:
    """Return the advantages of the threads that are judged by themselves, by rollout and index."""
    threads = [
        record for record in records if record.parent is not None and record.own is not None and record.generated
    ]
    keys = [(record.group, record.tokens[: record.mask.index(1)]) for record in threads]
    values = [record.own or 0.0 for record in threads]
    alike: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        alike[key].append(value)
    average = fmean(values) if values else 0.0
    gains = [
        value - (sum(alike[key]) - value + _PRIOR * average) / (len(alike[key]) - 1 + _PRIOR)
        for key, value in zip(keys, values, strict=True)
    ]
    # All threads are equally good: none is to be preferred.
    spread = math.sqrt(fmean(gain * gain for gain in gains)) if gains else 0.0
    return {
        (record.rollout, record.index): gain / spread if spread else 0.0
        for record, gain in zip(threads, gains, strict=True)
    }
