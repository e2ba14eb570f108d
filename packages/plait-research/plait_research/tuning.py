"""Which of many configurations serves a workload best, found in virtual time by successive halving.

Every configuration is simulated with one seed; the better half gets twice as many seeds, and so on (Karnin et al.,
"Almost optimal exploration in multi-armed bandits", ICML 2013; APEX searches plans of parallelism in the same way, by
simulation). A seed fixes arrivals and lengths alike for all configurations, so that they are compared pairwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from .simulation.workload import WorkloadReport

Goal = Literal["p50", "p90", "p99", "mean", "runs-per-second", "in-time"]
LARGER: frozenset[str] = frozenset(("runs-per-second", "in-time"))
"""Goals with higher figures as the better ones; for seconds, lower is better."""
KEPT = 3
"""Configurations that are left at the end."""
_STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86)
"""95 % quantiles of Student's t, of 1 degree of freedom and more: a 90 % interval."""


class Configuration(NamedTuple):
    """A configuration."""

    engines: int
    slots: int
    policy: str
    width: int | None = None
    """Samples or threads; `None`: as the planner has it."""


@dataclass(slots=True)
class Trial:
    """A configuration and what its simulations came to."""

    candidate: Configuration
    figures: list[float] = field(default_factory=list[float])
    """The goal, by seed."""
    reports: list[WorkloadReport] = field(default_factory=list[WorkloadReport])

    @property
    def mean(self) -> float:
        """The mean of the goal."""
        return fmean(self.figures)


def figure(report: WorkloadReport, goal: Goal) -> float:
    """Return a report's figure for a goal."""
    if goal == "runs-per-second":
        return report.throughput
    if goal == "in-time":
        return report.in_time / report.runs
    value: float = getattr(report.latency, goal)
    return value


def halve(
    candidates: Sequence[Configuration],
    play: Callable[[Configuration, int], WorkloadReport],
    goal: Goal,
    seeds: int = 8,
    enough: float | None = None,
) -> list[Trial]:
    """Return all configurations, best first; the last `KEPT` of them were simulated with all seeds.

    With `enough`, the share of runs that shall be in time: of the configurations that reach it the widest is best (more
    branches answer better), then the one with the fewest engines; the others follow by their share.
    """

    def order(trial: Trial) -> tuple[float, ...]:
        value = -trial.mean if goal in LARGER else trial.mean
        if enough is None:
            return value, trial.candidate.engines
        share = fmean(report.in_time / report.runs for report in trial.reports)
        if share < enough:
            return 1, -share, value
        return 0, -(trial.candidate.width or 0), trial.candidate.engines, value

    left, out, number = [Trial(candidate) for candidate in candidates], list[Trial](), 1
    while True:
        for trial in left:
            for seed in range(len(trial.figures), number):
                report = play(trial.candidate, seed)
                trial.figures.append(figure(report, goal))
                trial.reports.append(report)
        left.sort(key=order)
        if number >= seeds:
            return [*left, *reversed(out)]
        kept = max(min(KEPT, len(left)), len(left) // 2)
        out += reversed(left[kept:])
        left, number = left[:kept], min(seeds, 2 * number)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 90 % interval of the mean of some values, by Student's t; of a single one itself."""
    if len(values) < 2:
        return values[0], values[0]
    half = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1] * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def grid(
    engines: Sequence[int], slots: Sequence[int], policies: Sequence[str], widths: Sequence[int | None]
) -> list[Configuration]:
    """Return all combinations. With one engine there is nothing to place, so only the first policy is tried there."""
    return [
        Configuration(count, room, policy, width)
        for width in widths
        for count in engines
        for room in slots
        for policy in (policies if count > 1 else policies[:1])
    ]


def plain(tried: Trial, goal: Goal) -> Mapping[str, object]:
    """Return a configuration with its figures, for `--json`."""
    low, high = interval(tried.figures)
    return {
        **tried.candidate._asdict(),
        goal: round(tried.mean, 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "seeds": len(tried.figures),
        "in_time": round(fmean(report.in_time / report.runs for report in tried.reports), 4),
        "runs_per_second": round(fmean(report.throughput for report in tried.reports), 4),
    }
