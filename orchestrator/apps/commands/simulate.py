"""`plait simulate`: the time and tokens of a plan on a simulated cluster, one policy beside another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from ...core.errors import UsageError
from ...core.messages import counted
from ...runtime.plugins.loader import parse_plugin
from ...runtime.simulation.latency import Fault, Host, LatencyModel, Throttle
from ...runtime.simulation.simulator import SimReport, simulate as simulated, synthetic, varied, whole
from ..common.options import Common, Count, Json, Merge, Planner, Task, Tokens, common_options
from ..common.output import Output, opened
from .plan import asked, planned

__all__ = ["simulate"]

_CLUSTER = "The cluster"
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
    hosts: Annotated[int, typer.Option(min=1, help="Engines.", rich_help_panel=_CLUSTER)] = 1,
    slots: Annotated[
        int, typer.Option(min=1, help="Requests an engine decodes together.", rich_help_panel=_CLUSTER)
    ] = 64,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Tokens a second of each, whatever the batch.", rich_help_panel=_CLUSTER),
    ] = None,
    call_seconds: Annotated[float, typer.Option(min=0.0, help="What a tool takes.", rich_help_panel=_CLUSTER)] = 0.05,
    vary: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            metavar="SHARE",
            rich_help_panel=_CLUSTER,
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
            min=0.0, metavar="SECONDS", help="The first engine dies then; its steps go on elsewhere from their tokens.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    as_json: Json = False,
    *,
    common: Common,
) -> None:  # fmt: skip
    """Run a plan in virtual time and compare policies: seconds, waiting, how busy the engines are."""
    brief = asked(common.load(), text, task=task, planner=planned(planner, plan), merge=merge, n=n, tokens=tokens)
    rates: dict[str, Any] = {} if rate is None else {"decode_rate": rate}
    rates |= {"cache_tokens": cache, "block": block, "tells_ids": True}
    cluster = [Host(f"host-{i}", slots=slots, **rates) for i in range(1, hosts + 1)]
    if die is not None and hosts == 1:
        raise UsageError("the only engine would die and nothing would be left: give `--hosts 2` or more with `--die`")
    variants = list(policies or _DEFAULT)
    if len(set(variants)) != len(variants):
        raise UsageError("the same policy is given twice: `--policy` is repeated to compare different ones")
    with opened(as_json) as output:
        reports: dict[str, SimReport] = {}
        for variant in variants:
            reports[variant] = simulated(
                brief.request.model_copy(update={"policies": _together(variant)}),
                hosts=cluster,
                latency=LatencyModel(call=call_seconds),
                outcome=whole if vary is None else varied(vary),
                confidence=synthetic(),
                faults=_strikes(cluster, slow, die),
                tools=brief.tools,
                seed=brief.request.seed,
            )
        summaries = {name: _summary(report) for name, report in reports.items()}
        if as_json:
            output.result({"hosts": hosts, "slots": slots, "policies": summaries})
        else:
            _show(summaries, hosts, slots, output)
    failed = [report.failure for report in reports.values() if report.failure is not None]
    if failed:
        output.progress.print(f"error: {failed[0].message} ({failed[0].kind})", markup=False, soft_wrap=True)
        raise typer.Exit(1)


def _strikes(cluster: Sequence[Host], slow: float | None, die: float | None) -> list[Fault | Throttle]:
    strikes: list[Fault | Throttle] = [] if slow is None else [Throttle(0.0, cluster[-1].name, slow)]
    return strikes if die is None else [*strikes, Fault(die, cluster[0].name)]


def _together(variant: str) -> tuple[Any, ...]:
    return tuple(parse_plugin(each) for each in variant.split("+"))


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
        "error": None if report.failure is None else report.failure.message,
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
