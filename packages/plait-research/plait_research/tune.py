"""`plait simulate tune`: engines, slots, branches and policy for a workload, chosen by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Literal, NamedTuple

import typer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from rich import box
from rich.table import Table

from plait.apps.commands.run import briefed
from plait.apps.common.fields import list_names, read_fields
from plait.apps.common.options import Common, Json, Merge, Planner, Task, Tokens, common_options
from plait.apps.common.output import Output, opened
from plait.core.errors import UsageError
from plait.core.interfaces import PlanningContext
from plait.core.messages import pluralise
from plait.core.ops import Plugin
from plait.core.request import Request

from .simulation.engine_profile import EngineProfile, load_engine, named_model, profile_file
from .simulation.workload import WorkloadReport, at_rate, simulate_workload

# Which of many configurations serves a workload best, found in virtual time by successive halving.
#
# Every configuration is simulated with one seed; the better half gets twice as many seeds, and so on (Karnin et al.,
# "Almost optimal exploration in multi-armed bandits", ICML 2013; APEX searches plans of parallelism in the same way, by
# simulation). A seed fixes arrivals and lengths alike for all configurations, so that they are compared pairwise.


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


Several = Annotated[tuple[int, ...], BeforeValidator(lambda given: (given,) if isinstance(given, int) else given)]
"""One number, or a list of them."""


class TunedCluster(BaseModel):
    """The engines that are tried: the fields of `--cluster`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    engines: Several = (1, 2)
    slots: Several = Field((16, 64), description="Requests that an engine decodes together.")
    profile: Path | None = Field(None, description="Profile that `plait simulate calibrate` wrote.")
    cache: int = Field(0, ge=0, description="Tokens in each engine's prefix cache.")


class TunedLoad(BaseModel):
    """The workload of a choice: the fields of `--load`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    runs: int = Field(200, ge=2, description="Number of runs.")
    rate: float | None = Field(None, gt=0, description="Runs per second; all arrive at once by default.")
    within: float | None = Field(None, gt=0, description="Seconds in which a run should be done.")
    share: float = Field(0.95, ge=0, le=1, description="Share of the runs that should be.")


class TuneSearch(BaseModel):
    """How candidates are compared: the fields of `--search`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    goal: Goal = Field("p99", description="Figure that is compared.")
    seeds: int = Field(8, ge=1, le=64, description="Number of seeds for the last candidates.")


@common_options
def tune(
    text: Annotated[str, typer.Argument(help="Text of the request.")],
    task: Task = "plain",
    planner: Planner = None,
    merge: Merge = None,
    tokens: Tokens = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"Engines to try, and their cache: {list_names(TunedCluster)}.")
    ] = "",
    load: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"Workload of many runs: {list_names(TunedLoad)}.")
    ] = "",
    widths: Annotated[
        list[int] | None, typer.Option("--n", min=1, help="Number of samples or threads; repeatable.")
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME[+NAME…]", help="Policy to try; repeatable."),
    ] = None,
    search: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"How candidates are compared: {list_names(TuneSearch)}.")
    ] = "",
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Choose engines, slots, policy and width for a workload: all are simulated, the better half again with more
    seeds.

    Example: `plait simulate tune "Why?" --planner sample --n 4 --n 8 --cluster engines=[1,4] --load rate=5`."""
    config = common.load()
    shape, work = read_fields("--cluster", cluster, TunedCluster), read_fields("--load", load, TunedLoad)
    rules = read_fields("--search", search, TuneSearch)
    goal = rules.goal
    if goal == "in-time" and work.within is None:
        raise UsageError("--search goal=in-time needs to know the time: give --load within=SECONDS")
    model = named_model(config, Plugin.of(task).name)
    path = shape.profile or profile_file(model)
    if shape.profile is None and not path.exists():
        raise UsageError(
            f"the simulator is uncalibrated for {Path(model).name} on this machine, so what it "
            "would choose means nothing: run `plait simulate calibrate --probe`, or give --cluster profile=FILE"
        )
    known = load_engine(path)
    candidates = grid(shape.engines, shape.slots, policies or ["affinity", "least-loaded"], widths or [None])
    given = {"text": text, "task": task, "planner": planner, "merge": merge, "tokens": tokens}
    briefs = {
        width: briefed(config, Request.of({**given, "n": width}))
        for width in dict.fromkeys(candidate.width for candidate in candidates)
    }
    play = _player(known, briefs, work, shape.cache)
    with opened(as_json) as output:
        tried = halve(candidates, play, goal, rules.seeds, None if work.within is None else work.share)
        rows = [dict(plain(trial, goal)) for trial in tried]
        if as_json:
            head = {"goal": goal, "calibrated": f"{known.model} on {known.machine}", "error": known.error}
            output.result({**head, "configurations": rows})
        else:
            _show(tried, known, goal, work.within, output)


def _player(
    known: EngineProfile, briefs: dict[int | None, PlanningContext], work: TunedLoad, cache: int
) -> Callable[[Configuration, int], WorkloadReport]:
    """Return a function that simulates the workload on a calibrated cluster, with one configuration and one seed."""

    def play(candidate: Configuration, seed: int) -> WorkloadReport:
        brief = briefs[candidate.width]
        policies = tuple(Plugin.of(spec) for spec in candidate.policy.split("+"))
        names = (f"host-{i}" for i in range(1, candidate.engines + 1))
        return simulate_workload(
            brief.request.model_copy(update={"policies": policies, "seed": 1_000_000 * seed}),
            at_rate(work.runs, work.rate, seed=seed),
            hosts=[known.host(name, candidate.slots, cache_tokens=cache) for name in names],
            latency=known.latency(),
            outcome=known.outcome(),
            tools=brief.tools,
            seed=seed,
            within=work.within or math.inf,
        )

    return play


def _show(
    tried: Sequence[Trial],
    known: EngineProfile,
    goal: str,
    within: float | None,
    output: Output,
) -> None:
    say = output.people.print
    say(
        f"calibrated: {known.model} on {known.machine}, attempts to {known.error:.0%}; engines are taken to have cores "
        "or GPUs of their own",
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("engines", "slots", "policy", "n", goal, "90 % interval", "seeds", "runs/s")
    for name in (*columns, f"within {within:g} s") if within is not None else columns:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for trial in tried:
        low, high = interval(trial.figures)
        figures = plain(trial, goal)  # type: ignore[arg-type]
        engines, slots, policy, width = trial.candidate
        wide = "*" if slots > 2 * known.widest else ""
        table.add_row(
            f"{engines}", f"{slots}{wide}", policy, "" if width is None else f"{width}", f"{trial.mean:.4g}",
            f"{low:.4g}–{high:.4g}", f"{len(trial.figures)}", f"{figures['runs_per_second']:.3g}",
            *([f"{figures['in_time']:.0%}"] if within is not None else []),
        )  # fmt: skip
    say(table)
    best = tried[0].candidate
    width = "" if best.width is None else f", n={best.width}"
    say(f"best: {pluralise(best.engines, 'engine')}, slots={best.slots}, policy {best.policy}{width}", markup=False)
    close = [a for a, b in pairwise(tried[:KEPT]) if interval(a.figures)[1] >= interval(b.figures)[0]]
    if close and goal not in ("runs-per-second", "in-time"):
        say("the first ones lie within one another's intervals: measure them", markup=False)
    if any(trial.candidate.slots > 2 * known.widest for trial in tried):
        say(f"*: only up to {known.widest} sequences together were seen in calibration", markup=False)
