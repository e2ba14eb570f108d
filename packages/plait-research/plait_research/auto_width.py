"""`n=auto`: the number of branches that end in time, by the calibrated pace of the model (a hook of plait).

As in "Predicting the runtime of parallel local search" (arXiv 2403.08790) branches are independent draws, so the k-th
of n to end is a sum of binomials. Lengths are tokens; seconds follow from a decoding step of n sequences
(`fixed + each * n`), which gets shorter as branches end.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from plait.core.budget import Budget
from plait.core.errors import UsageError
from plait.core.interfaces import Planner
from plait.core.ops import Plugin
from plait.runtime.client.config import Config
from plait.runtime.client.request_preparation import AUTO
from plait.runtime.plugins.loader import Plugins

from .simulation.engine_profile import load_engine, profile_file

Step = Callable[[float], float]
"""Seconds of a decoding step, by the number of sequences."""


class Branches:
    """Recorded lengths of branches, in tokens. Raises `ValueError` without lengths, and for one below 1."""

    def __init__(self, lengths: Sequence[int]) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError("lengths of at least one token are needed")
        self.lengths: list[int] = sorted(lengths)

    def ended(self, n: int, k: int) -> list[float]:
        """Return P(the k-th of n has ended by then), for each length."""
        total = len(self.lengths)
        return [_probability_at_least(n, k, bisect_right(self.lengths, length) / total) for length in self.lengths]

    def times(self, n: int, step: Step | None) -> list[float]:
        """Return when a branch of each length ends, n having begun together; it is quicker as others have ended."""
        if step is None:
            return [float(length) for length in self.lengths]
        total, times, at, before = len(self.lengths), list[float](), 0.0, 0
        for i, length in enumerate(self.lengths):
            alive = max(1.0, n * (total - i) / total)
            at += (length - before) * step(alive)
            before = length
            times.append(at)
        return times


def max_branches_within(
    latency: float, lengths: Branches, step: Step, *, share: float = 1.0, quantile: float = 0.9, most: int = 256
) -> int:
    """Return the maximum number of branches whose `share` ends within `latency` seconds, with probability
    `quantile`. 0 if a single one takes longer. `step` returns the seconds of a decoding step by number of sequences.

    >>> max_branches_within(3.0, Branches([100] * 50), lambda n: 0.01 + 0.001 * n)
    20
    """

    def fits(n: int) -> bool:
        k = max(1, math.ceil(share * n))
        chances = lengths.ended(n, k)
        times = lengths.times(n, step)
        reached = (time for time, chance in zip(times, chances, strict=True) if chance >= quantile)
        return next(reached, math.inf) <= latency

    return bisect_left(range(1, most + 1), True, key=lambda n: not fits(n))


def _probability_at_least(n: int, k: int, p: float) -> float:
    """Return P(at least k of n), each with probability p."""
    if p >= 1.0:
        return 1.0
    if p <= 0.0:
        return 0.0
    odds, term, total = math.log(p) - math.log1p(-p), n * math.log1p(-p), 0.0
    for i in range(n + 1):
        if i >= k:
            total += math.exp(term)
        if i < n:
            term += math.log((n - i) / (i + 1)) + odds
    return min(1.0, total)


def choose_width(spec: Plugin, plugins: Plugins, config: Config, budget: Budget) -> Plugin:
    """Return a planner with a number instead of `auto`: the maximum number of branches that all end within the
    budget's seconds with probability 0.9, by the recorded lengths of such steps and the engine's pace, on one engine
    with nothing else to do. At least one.

    Raises `UsageError` without a limit of seconds and where the model is not calibrated on this machine.
    """
    if spec.options.get("n") != AUTO:
        return spec
    planner = cast("type[Planner]", plugins.class_of("planner", spec.name))
    if "n" not in planner.model_fields:  # the planner's own refusal is clearer
        return spec
    if budget.seconds is None:
        raise UsageError("n=auto takes as many branches as end in time: say how long that is (seconds)")
    path = profile_file(config.model)
    if not path.exists():
        raise UsageError(
            f"n=auto needs to know how fast {Path(config.model).name} is here, and it is uncalibrated: "
            "run `plait simulate calibrate --probe`, or give n as a number"
        )
    profile = load_engine(path)
    known = next((recorded for name, recorded in profile.lengths.items() if name.startswith(spec.name)), ())
    lengths = known or tuple(length for recorded in profile.lengths.values() for length in recorded)
    made = plugins.planner(Plugin(name=spec.name, options={**spec.options, "n": 1}))
    prompts = (getattr(made, name) for name in planner.says_answer())
    limit = max((prompt.max_tokens or 0 for prompt in prompts), default=0) or 512
    branches = Branches([max(1, min(length, limit)) for length in lengths or (limit,)])
    number = max_branches_within(budget.seconds - profile.dispatch, branches, profile.step)
    return Plugin(name=spec.name, options={**spec.options, "n": max(1, number)})
