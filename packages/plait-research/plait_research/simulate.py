"""`plait simulate`: time and tokens of a plan, or of many runs, on a simulated cluster; one policy beside another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field
from rich import box
from rich.table import Table

from plait.apps.commands.run import briefed, planned
from plait.apps.common.fields import list_names, read_fields
from plait.apps.common.options import Common, Count, Json, Merge, Planner, Task, Tokens, common_options
from plait.apps.common.output import Output, opened
from plait.core.errors import UsageError
from plait.core.interfaces import PlanningContext
from plait.core.messages import pluralise
from plait.core.ops import Plugin
from plait.core.request import Request

from .simulation.engine_profile import EngineProfile, load_engine, named_model, profile_file
from .simulation.latency import Host, LatencyModel, Throttle
from .simulation.recorded_sessions import MAX_GAP_S, read_sessions, simulate_sessions
from .simulation.simulator import SimReport, simulate as simulated, synthetic, varied, whole
from .simulation.workload import WorkloadReport, at_rate, simulate_workload

_DEFAULT = ("fifo", "critical-path")
_TRACE_DEFAULT = ("affinity", "affinity+working-set")
_COUNTED = {"runs", "done", "partial", "failed", "cancelled", "refused", "attempts", "events"}


class SimulatedCluster(BaseModel):
    """The engines of a simulation: the fields of `--cluster`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    engines: int = Field(1, ge=1)
    slots: int = Field(64, ge=1, description="Requests that an engine decodes together.")
    profile: Path | None = Field(None, description="Profile that `plait simulate calibrate` wrote.")
    decode_rate: float | None = Field(None, gt=0, description="Tokens per second of each request, at any batch size.")
    vary: float | None = Field(None, ge=0.01, le=1, description="Mean share of a step's token limit that is generated.")
    cache: int = Field(0, ge=0, description="Tokens in each engine's prefix cache.")
    block: int = Field(16, ge=1, description="Tokens in a block of it.")
    step_tokens: int = Field(0, ge=0, description="Tokens of a step that decodes and prefills (0: no such steps).")
    slow: float | None = Field(None, gt=0, le=1, description="Share of its speed that the last engine has.")


class SimulatedLoad(BaseModel):
    """The runs of a simulation: the fields of `--load`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    runs: int | None = Field(None, ge=1, description="Number of runs that share the engines.")
    rate: float | None = Field(None, gt=0, description="Runs per second; all arrive at once by default.")
    within: float | None = Field(None, gt=0, description="Seconds for the count of runs that end in time.")
    calls: int | None = Field(None, ge=1, description="Number of calls per recorded session (--trace).")
    gap: float = Field(MAX_GAP_S, ge=0, description="Longest gap between recorded calls, in seconds (--trace).")


@common_options
def simulate(
    text: Annotated[str, typer.Argument(help="Text of the request.")] = "",
    task: Task = "plain",
    planner: Planner = None,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Plan to simulate (planner `fixed`).")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recorded sessions to play: Mooncake, GenAI spans or Claude Code's."),
    ] = None,
    merge: Merge = None,
    n: Count = None,
    tokens: Tokens = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME[+NAME…]", help="Policy to compare; repeatable; `+` joins several."),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"Simulated engines: {list_names(SimulatedCluster)}.")
    ] = "",
    load: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"Workload of many runs: {list_names(SimulatedLoad)}.")
    ] = "",
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Run a plan, or a workload of many runs, in virtual time, and compare policies: seconds, waiting, how busy the
    engines are. Example: `plait simulate "Why?" --planner sample:n=8 --load runs=1000,rate=20 --cluster engines=16`.

    `--trace FILE` plays recorded agents: `plait simulate --trace FILE --load runs=16 --cluster cache=1200000`.
    """
    config = common.load()
    engines, shape = read_fields("--cluster", cluster, SimulatedCluster), read_fields("--load", load, SimulatedLoad)
    given = Request.of({"text": text, "task": task, "planner": planner, "merge": merge, "n": n, "tokens": tokens})
    brief = briefed(config, planned(given if trace is None else given.updated({"text": trace.name}), plan))
    variants = list(policies or (_DEFAULT if trace is None else _TRACE_DEFAULT))
    _check(variants, engines, trace is not None and any((text, plan, planner, merge, n, tokens)))
    model = named_model(config, brief.request.task.name)
    known = _profile(engines.profile, model) if engines.decode_rate is None else None
    with opened(as_json) as output:
        play = _player(brief, trace, shape, known, engines, config.max_waiting, output)
        reports = {name: play(brief.request.model_copy(update={"policies": _together(name)})) for name in variants}
        one = isinstance(reports[variants[0]], SimReport)
        summaries = {
            name: _summary(report) if isinstance(report, SimReport) else _of_workload(report, shape.within)
            for name, report in reports.items()
        }
        if as_json:
            head = {
                "engines": engines.engines,
                "slots": engines.slots,
                "calibrated": known and f"{known.model} on {known.machine}",
            }
            output.result({**head, "policies": summaries})
        else:
            output.people.print(_trust(known, engines.slots), markup=False)
            (_show if one else _show_workload)(summaries, engines.engines, engines.slots, output)
    failed = next((summary["error"] for summary in summaries.values() if summary["error"] is not None), None)
    if failed is not None:
        output.progress.print(f"error: {failed}", markup=False, soft_wrap=True)
        raise typer.Exit(1)


def _check(variants: Sequence[str], engines: SimulatedCluster, is_planned_trace: bool) -> None:
    if is_planned_trace:
        raise UsageError("--trace has the calls to simulate: leave text, plan, planner, merge, n and tokens out")
    if len(set(variants)) != len(variants):
        raise UsageError("the same policy is given twice: `--policy` is repeated to compare different ones")


def _player(
    brief: PlanningContext,
    trace: Path | None,
    load: SimulatedLoad,
    known: EngineProfile | None,
    engines: SimulatedCluster,
    max_waiting: int | None,
    output: Output,
) -> Callable[[Request], SimReport | WorkloadReport]:
    """Return a function that simulates a request once, as often as the load says, or with the sessions of a trace."""
    sessions, notes = (
        ([], []) if trace is None else read_sessions(trace, sessions=load.runs, calls=load.calls, max_gap=load.gap)
    )
    for note in notes:
        output.progress.print(f"note: {note}", markup=False)
    if trace is not None and (load.rate is not None or load.runs is not None):
        load = load.model_copy(update={"runs": len(sessions)})
    recorded = trace is not None and load.rate is None
    times = [session.at for session in sessions] if recorded else _times(load, brief.request.seed)
    options = _cluster(known, engines, tells_ids=times is None)
    slow = [] if engines.slow is None else [Throttle(0.0, options["hosts"][-1].name, engines.slow)]
    options |= {"confidence": synthetic(), "faults": slow, "seed": brief.request.seed}
    if times is None:
        return lambda request: simulated(request, tools=brief.tools, **options)
    options |= {"within": load.within or math.inf, "max_waiting": max_waiting}
    if trace is None:
        return lambda request: simulate_workload(request, times, tools=brief.tools, **options)
    del options["outcome"]
    return lambda request: simulate_sessions(sessions, request, arrivals=times, **options)


def _cluster(known: EngineProfile | None, given: SimulatedCluster, tells_ids: bool) -> dict[str, Any]:
    """Return engines, times and lengths, those of a profile if there is one. `tells_ids`: whether engines report token
    ids, which are only needed to continue after a loss; with many runs they would cost the most time."""
    made = Host if known is None else known.host
    lengths = whole if known is None or not known.lengths else known.outcome()
    rates: dict[str, Any] = {} if given.decode_rate is None else {"decode_rate": given.decode_rate}
    rates |= {"cache_tokens": given.cache, "block": given.block, "step_tokens": given.step_tokens}
    rates["tells_ids"] = tells_ids
    return {
        "hosts": [made(f"host-{i}", slots=given.slots, **rates) for i in range(1, given.engines + 1)],
        "latency": LatencyModel() if known is None else known.latency(),
        "outcome": lengths if given.vary is None else varied(given.vary),
    }


def _profile(path: Path | None, model: str) -> EngineProfile | None:
    """Return the profile that is named, or the one of a model on this machine, if there is one."""
    if path is None:
        path = profile_file(model)
        if not path.exists():
            return None
    return load_engine(path)


def _trust(profile: EngineProfile | None, slots: int) -> str:
    """Say what the figures stand on."""
    if profile is None:
        return "uncalibrated: seconds are those of an assumed engine (`plait simulate calibrate` fits them to yours)"
    note = f"calibrated: {profile.model} on {profile.machine}, attempts to {profile.error:.0%}"
    wide = f"; only up to {profile.widest} sequences together were seen" if slots > 2 * profile.widest else ""
    return note + wide


def _times(load: SimulatedLoad, seed: int) -> list[float] | None:
    """Return when runs arrive; `None` if only one is simulated."""
    if load.runs is None:
        if load.rate is not None:
            raise UsageError(
                "rate is the number of runs per second, so give runs too, such as --load runs=100,rate=2; "
                "tokens per second of an engine are --cluster decode_rate=N"
            )
        return None
    return at_rate(load.runs, load.rate, seed=seed)


def _together(variant: str) -> tuple[Any, ...]:
    return tuple(Plugin.of(part) for part in variant.split("+"))


def _summary(report: SimReport) -> dict[str, Any]:
    busy = list(report.busy.values())
    return {
        "status": report.status,
        "makespan_seconds": round(report.makespan, 6),
        "wait_mean_seconds": round(report.wait_mean, 6),
        "wait_max_seconds": round(report.wait_max, 6),
        "busy_mean": round(sum(busy) / len(busy), 4) if busy else 0.0,
        "critical_path_tokens": report.critical_path_tokens,
        "attempts": len(report.spans),
        **_spent(report),
    }


def _of_workload(report: WorkloadReport, within: float | None) -> dict[str, Any]:
    spreads = {"latency": report.latency, "wait": report.wait, "turn": report.turn}
    return {
        **report.model_dump(include=_COUNTED),
        **({} if within is None else {"in_time": report.in_time}),
        "makespan_seconds": round(report.makespan, 6),
        **{
            f"{what}_{name}_seconds": round(value, 6)
            for what, spread in spreads.items()
            for name, value in spread.model_dump().items()
        },
        "runs_per_second": round(report.throughput, 4),
        "tokens_per_second": round(report.tokens_per_second, 2),
        "utilisation": round(report.utilisation, 4),
        "utilisation_busiest": round(report.busiest, 4),
        "utilisation_idlest": round(report.idlest, 4),
        "prompt_tokens": report.usage.prompt,
        **_spent(report),
    }


def _spent(report: SimReport | WorkloadReport) -> dict[str, Any]:
    """Return the figures of both kinds of reports."""
    return {
        **report.model_dump(include={"steps", "prompt_computed", "prompt_unique"}),
        "total_tokens": report.usage.completion,
        "cancelled_tokens": report.usage.cancelled,
        "error": None if report.failure is None else f"{report.failure.message} ({report.failure.kind})",
    }


def _show(summaries: dict[str, dict[str, Any]], engines: int, slots: int, output: Output) -> None:
    some = next(iter(summaries.values()))
    output.people.print(f"{pluralise(some['steps'], 'step')} on {engines} × {slots} slots, in virtual time")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "seconds": lambda row: f"{row['makespan_seconds']:.3f}",
        "mean wait": lambda row: f"{row['wait_mean_seconds']:.3f}",
        "longest wait": lambda row: f"{row['wait_max_seconds']:.3f}",
        "busy": lambda row: f"{row['busy_mean'] * 100:.0f} %",
        "tokens": lambda row: str(row["total_tokens"]),
        "cancelled": lambda row: str(row["cancelled_tokens"]),
    }
    if any(summary["prompt_unique"] for summary in summaries.values()):
        columns["prompts read ÷ unique"] = lambda row: f"{row['prompt_computed'] / max(1, row['prompt_unique']):.2f}"
    _print_table(summaries, columns, output)


def _show_workload(summaries: dict[str, dict[str, Any]], engines: int, slots: int, output: Output) -> None:
    some = next(iter(summaries.values()))
    output.people.print(f"{pluralise(some['runs'], 'run')} on {engines} × {slots} slots, in virtual time")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "seconds": lambda row: f"{row['makespan_seconds']:.3f}",
        "p50": lambda row: f"{row['latency_p50_seconds']:.3f}",
        "p90": lambda row: f"{row['latency_p90_seconds']:.3f}",
        "p99": lambda row: f"{row['latency_p99_seconds']:.3f}",
        "runs/s": lambda row: f"{row['runs_per_second']:.2f}",
        "busy": lambda row: f"{row['utilisation'] * 100:.0f} %",
        "cancelled": lambda row: str(row["cancelled_tokens"]),
    }
    if "in_time" in some:
        columns["in time"] = lambda row: str(row["in_time"])
    if any(summary["runs"] != summary["done"] for summary in summaries.values()):
        columns["not done"] = lambda row: str(row["runs"] - row["done"])
    if some["prompt_unique"]:
        columns["call p99"] = lambda row: f"{row['turn_p99_seconds']:.3f}"
        columns["cache hits"] = lambda row: f"{1 - row['prompt_computed'] / max(1, row['prompt_tokens']):.1%}"
        columns["prompts read ÷ unique"] = lambda row: f"{row['prompt_computed'] / row['prompt_unique']:.2f}"
    _print_table(summaries, columns, output)
    output.people.print("p50, p90, p99: seconds from arrival to end; busy: share of all slots; cancelled: tokens")


def _print_table(
    summaries: dict[str, dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str]], output: Output
) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    for name in columns:
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        table.add_row(name, *(cell(summary) for cell in columns.values()))
    output.people.print(table)
