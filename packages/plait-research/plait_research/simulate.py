"""`plait simulate`: time and tokens of a plan, or of many runs, on a simulated cluster; one policy beside another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from plait.apps.commands.plan import briefed, planned
from plait.apps.common.options import Common, Count, Json, Merge, Planner, Task, Tokens, common_options
from plait.apps.common.output import Output, opened
from plait.core.errors import UsageError
from plait.core.messages import counted
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.client.profile import profile_file

from .simulation.engine_profile import EngineProfile, load_engine
from .simulation.latency import Host, LatencyModel, Throttle, WorkerFault
from .simulation.simulator import SimReport, simulate as simulated, synthetic, varied, whole
from .simulation.workload import WorkloadReport, at_rate, read_arrivals, simulate_workload

__all__ = ["simulate"]

_CLUSTER = "The cluster"
_WORKLOAD = "Many runs"
_DEFAULT = ("fifo", "critical-path")


@common_options
def simulate(
    text: Annotated[str, typer.Argument(help="What is asked.")] = "",
    task: Task = "plain",
    planner: Planner = None,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Simulate this plan (planner `fixed`).")] = None,
    merge: Merge = None,
    n: Count = None,
    tokens: Tokens = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME[+NAME…]", help="Repeat to compare; `+` puts several into one run."),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Number of runs that share the engines.", rich_help_panel=_WORKLOAD)
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.000001, metavar="R", help="Runs that arrive a second; left out, all arrive at once.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            min=0.001, metavar="K", rich_help_panel=_WORKLOAD,
            help="1: a Poisson process; less comes in bursts, more is more even (gamma intervals of this shape).",
        ),
    ] = 1.0,
    arrivals: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_WORKLOAD,
            help="Runs arrive as here: a number of seconds a line, JSON lines with `at` (or `timestamp`, in ms), or "
            "CSV with a column `at` or `TIMESTAMP`.",
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="Time for the count of ended runs.", rich_help_panel=_WORKLOAD),
    ] = None,
    engines: Annotated[int, typer.Option("--engines", "--hosts", min=1, help="Engines.", rich_help_panel=_CLUSTER)] = 1,
    slots: Annotated[
        int, typer.Option(min=1, help="Requests an engine decodes together.", rich_help_panel=_CLUSTER)
    ] = 64,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of `plait simulate calibrate`.", rich_help_panel=_CLUSTER)
    ] = None,
    decode_rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Tokens a second of each, whatever the batch.", rich_help_panel=_CLUSTER),
    ] = None,
    call_seconds: Annotated[float, typer.Option(min=0.0, help="What a tool takes.", rich_help_panel=_CLUSTER)] = 0.05,
    vary: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, metavar="SHARE", rich_help_panel=_CLUSTER,
            help="Draw lengths around this share of what a step may generate; left out, all of it.",
        ),
    ] = None,
    cache: Annotated[
        int, typer.Option(min=0, help="Tokens in each engine's prefix cache; 0: none.", rich_help_panel=_CLUSTER)
    ] = 0,
    block: Annotated[int, typer.Option(min=1, help="Tokens in a block of it.", rich_help_panel=_CLUSTER)] = 16,
    slow: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1.0, metavar="SHARE", help="The last engine has this share of its speed.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    die: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="SECONDS", help="When the first engine dies; others continue its steps from their tokens.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    as_json: Json = False,
    *,
    common: Common,
) -> None:  # fmt: skip
    """Run a plan, or a workload of many runs, in virtual time, and compare policies: seconds, waiting, how busy the
    engines are. Example: `plait simulate "Why?" --planner sample:n=8 --runs 1000 --rate 20 --engines 16`."""
    config = common.load()
    given = Request.of({"text": text, "task": task, "planner": planner, "merge": merge, "n": n, "tokens": tokens})
    brief = briefed(config, planned(given, plan))
    times = _times(runs, rate, burstiness, arrivals, brief.request.seed)
    if die is not None and engines == 1:
        raise UsageError("the only engine would die and nothing would be left: give `--engines 2` or more with `--die`")
    _refuse_doubles(variants := list(policies or _DEFAULT))
    known = _profile(profile, config.model) if decode_rate is None else None
    rates: dict[str, Any] = {} if decode_rate is None else {"decode_rate": decode_rate}
    # events of tokens are only needed to continue after a loss; with many runs they would cost the most time
    rates |= {"cache_tokens": cache, "block": block, "tells_ids": times is None or die is not None}
    options = _cluster(known, engines, slots, call_seconds, vary, rates)
    options |= {"confidence": synthetic(), "faults": _strikes(options["hosts"], slow, die)}
    options |= {"tools": brief.tools, "seed": brief.request.seed}
    with opened(as_json) as output:
        summaries: dict[str, dict[str, Any]] = {}
        for variant in variants:
            request = brief.request.model_copy(update={"policies": _together(variant)})
            if times is None:
                summaries[variant] = _summary(simulated(request, **options))
            else:
                summaries[variant] = _many(request, times, within, max_waiting=config.max_waiting, **options)
        if as_json:
            head = {"engines": engines, "slots": slots, "calibrated": known and f"{known.model} on {known.machine}"}
            output.result({**head, "policies": summaries})
        else:
            output.people.print(_trust(known, slots), markup=False)
            (_show if times is None else _show_workload)(summaries, engines, slots, output)
    failed = next((summary["error"] for summary in summaries.values() if summary["error"] is not None), None)
    if failed is not None:
        output.progress.print(f"error: {failed}", markup=False, soft_wrap=True)
        raise typer.Exit(1)


def _refuse_doubles(variants: list[str]) -> None:
    if len(set(variants)) != len(variants):
        raise UsageError("the same policy is given twice: `--policy` is repeated to compare different ones")


def _many(request: Request, times: list[float], within: float | None, **options: Any) -> dict[str, Any]:
    return _of_workload(simulate_workload(request, times, within=within or math.inf, **options), within)


def _cluster(
    known: EngineProfile | None, engines: int, slots: int, call: float, vary: float | None, rates: dict[str, Any]
) -> dict[str, Any]:
    """Return engines, times and lengths, those of a profile if there is one."""
    made = Host if known is None else known.host
    lengths = whole if known is None or not known.lengths else known.outcome()
    return {
        "hosts": [made(f"host-{i}", slots=slots, **rates) for i in range(1, engines + 1)],
        "latency": (LatencyModel if known is None else known.latency)(call=call),
        "outcome": lengths if vary is None else varied(vary),
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


def _times(
    runs: int | None, rate: float | None, burstiness: float, trace: Path | None, seed: int
) -> list[float] | None:
    """Return when runs arrive; `None` if only one is simulated."""
    if trace is not None:
        if rate is not None or burstiness != 1.0:
            raise UsageError("the file of `--arrivals` has the arrival times: leave `--rate` and `--burstiness` out")
        return read_arrivals(trace, runs)
    if runs is None:
        if rate is not None:
            raise UsageError(
                "`--rate` is the number of runs per second, so give `--runs` too; "
                "tokens a second of an engine are `--decode-rate`"
            )
        return None
    return at_rate(runs, rate, burstiness=burstiness, seed=seed)


def _strikes(cluster: Sequence[Host], slow: float | None, die: float | None) -> list[WorkerFault | Throttle]:
    strikes: list[WorkerFault | Throttle] = [] if slow is None else [Throttle(0.0, cluster[-1].name, slow)]
    return strikes if die is None else [*strikes, WorkerFault(die, cluster[0].name)]


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
        "total_tokens": report.usage.completion,
        "cancelled_tokens": report.usage.cancelled,
        "critical_path_tokens": report.critical_path_tokens,
        "steps": report.steps,
        "attempts": len(report.spans),
        "prompt_computed": report.prompt_computed,
        "prompt_unique": report.prompt_unique,
        "error": None if report.failure is None else f"{report.failure.message} ({report.failure.kind})",
    }


def _of_workload(report: WorkloadReport, within: float | None) -> dict[str, Any]:
    spreads = {"latency": report.latency, "wait": report.wait}
    return {
        "runs": report.runs,
        "done": report.done,
        "partial": report.partial,
        "failed": report.failed,
        "cancelled": report.cancelled,
        "refused": report.refused,
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
        "total_tokens": report.usage.completion,
        "cancelled_tokens": report.usage.cancelled,
        "steps": report.steps,
        "attempts": report.attempts,
        "events": report.events,
        "prompt_computed": report.prompt_computed,
        "prompt_unique": report.prompt_unique,
        "error": None if report.failure is None else f"{report.failure.message} ({report.failure.kind})",
    }


def _show(summaries: dict[str, dict[str, Any]], hosts: int, slots: int, output: Output) -> None:
    some = next(iter(summaries.values()))
    output.people.print(f"{counted(some['steps'], 'step')} on {hosts} × {slots} slots, in virtual time")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    cached = any(summary["prompt_unique"] for summary in summaries.values())
    columns = ("seconds", "mean wait", "longest wait", "busy", "tokens", "cancelled")
    for name in (*columns, "prompts read ÷ unique") if cached else columns:
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        table.add_row(
            name,
            f"{summary['makespan_seconds']:.3f}",
            f"{summary['wait_mean_seconds']:.3f}",
            f"{summary['wait_max_seconds']:.3f}",
            f"{summary['busy_mean'] * 100:.0f} %",
            str(summary["total_tokens"]),
            str(summary["cancelled_tokens"]),
            *([f"{summary['prompt_computed'] / max(1, summary['prompt_unique']):.2f}"] if cached else []),
        )
    output.people.print(table)


def _show_workload(summaries: dict[str, dict[str, Any]], engines: int, slots: int, output: Output) -> None:
    some = next(iter(summaries.values()))
    output.people.print(f"{counted(some['runs'], 'run')} on {engines} × {slots} slots, in virtual time")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    ill = any(summary["runs"] != summary["done"] for summary in summaries.values())
    columns = ("seconds", "p50", "p90", "p99", "runs/s", "busy", "cancelled")
    timed = "in_time" in some
    for name in (*columns, *(["in time"] if timed else []), *(["not done"] if ill else [])):
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        table.add_row(
            name,
            f"{summary['makespan_seconds']:.3f}",
            *(f"{summary[f'latency_{share}_seconds']:.3f}" for share in ("p50", "p90", "p99")),
            f"{summary['runs_per_second']:.2f}",
            f"{summary['utilisation'] * 100:.0f} %",
            str(summary["cancelled_tokens"]),
            *([str(summary["in_time"])] if timed else []),
            *([str(summary["runs"] - summary["done"])] if ill else []),
        )
    output.people.print(table)
    output.people.print("p50, p90, p99: seconds from arrival to end; busy: share of all slots; cancelled: tokens")
