"""`plait learn route`: which planner requests are worth, fitted to the runs in journals."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table as Shown

from plait.apps.common.fields import list_names, read_fields
from plait.apps.common.journals import Place, place_of
from plait.apps.common.options import Json
from plait.apps.common.output import Output, opened
from plait.core.messages import pluralise
from plait.core.ops import Plugin
from plait.core.task import Task
from plait.core.values import as_text
from plait.runtime.journal.directory import RunEntry, entries
from plait.runtime.plugins.loader import Plugins

from ..rollouts.export import ExclusionCounts, export
from .features import vote_share
from .fit import RouteReport, RouteRow, fit, key_of, report
from .ranking import Ranking

Tasks = dict[str, list[RouteRow]]


class RouteRules(BaseModel):
    """How planners are compared: the fields of `--select`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    max_loss: float = Field(0.01, ge=0, le=1, description="Share of right answers that may be lost to save tokens.")
    min_runs: int = Field(100, ge=2, description="Minimum number of runs of a planner.")
    price: float | None = Field(None, ge=0, description="Price of a token (a right answer: 1); fitted by default.")


def route(
    place: Place = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Output file, for route-features:path=OUT.json.")
    ] = None,
    select: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help=f"How planners are compared: {list_names(RouteRules)}.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Fit, for each task, which planner a request is worth, to the runs in journals."""
    rules, left = read_fields("--select", select, RouteRules), ExclusionCounts()
    tasks = rows_of(entries(place_of(place), []), Plugins(), left)
    routes: dict[str, Ranking] = {}
    reports: dict[str, RouteReport | None] = {}
    for task, rows in sorted(tasks.items()):
        made = fit(rows, checked=True, lose=rules.max_loss, least=rules.min_runs, price=rules.price)
        if made is None:
            left.add(f"of a task without two planners that have {rules.min_runs} runs ({task})", len(rows))
            continue
        routes[task], reports[task] = made, report(rows, made, checked=True)
    if out is not None:
        plugins = {task: _plugin(ranking).model_dump(mode="json") for task, ranking in routes.items()}
        out.write_text(json.dumps(plugins, indent=1) + "\n", encoding="utf-8")
    with opened(as_json) as output:
        if as_json:
            output.result(
                {
                    "routes": {task: ranking.model_dump(mode="json") for task, ranking in routes.items()},
                    "reports": {task: _figures(report) for task, report in reports.items() if report is not None},
                    "left": left.why,
                }
            )
            return
        for task, figures in reports.items():
            _show(output, task, routes[task], figures)
        for why, number in sorted(left.why.items()):
            output.people.print(f"{pluralise(number, 'run')} left out: {why}", markup=False)
        if not routes:
            output.people.print("no route: run the same requests with two planners or more, and journal them")


def rows_of(runs: Iterable[RunEntry], plugins: Plugins, left: ExclusionCounts) -> Tasks:
    """Return the runs of journals by task, for tasks that can tell a wrong answer by themselves. A run that ended
    without an answer was wrong; one that cannot be read or judged is counted in `left`."""
    tasks: Tasks = {}
    for run in export(runs, plugins, left, unanswered=True):
        request, finish = run.run.request, run.run.finish
        if finish is None or finish.status not in ("done", "partial"):
            left.add("that did not end")
            continue
        if type(run.task).verify is Task.verify or run.right is None:
            left.add("that cannot be graded: the task has no verifier")
            continue
        text = None if finish.result is None else as_text(finish.result.value)
        agreed = None if finish.result is None else vote_share(finish.result.why)
        row = RouteRow(request.text, request.planner, float(run.right), float(run.tokens), text, agreed)
        tasks.setdefault(request.task.name, []).append(row)
    return tasks


def _plugin(route: Ranking) -> Plugin:
    fit = route.model_dump(mode="json")
    return Plugin(name="route-features", options={"candidates": fit.pop("tiers"), "fit": fit})


def _show(output: Output, task: str, route: Ranking, report: RouteReport | None) -> None:
    output.people.print(
        f"{task}: {pluralise(len(route.tiers), 'planner')}, price {route.price:.2g} a token", markup=False
    )
    if route.first is not None:
        first = key_of(route.tiers[route.first].planner)
        output.people.print(
            f"{first} answers first, and its answer is read: it stays, or another answers", markup=False
        )
    if report is None:
        output.people.print("no request was run with all of them, so nothing can be compared", markup=False)
        return
    shown = Shown(box=None, pad_edge=False)
    for name in ("choice", "right", "tokens a request", "of the oracle's saving"):
        shown.add_column(name, justify="left" if name == "choice" else "right")
    always = {f"always {key}": outcome for key, outcome in report.tiers.items()}
    shares = {"all in turn": report.saved_by_cascade, "this route": report.saved, "oracle": 1.0}
    ways = {
        **always,
        "at random, same mix": report.random,
        "all in turn": report.cascade,
        f"in hindsight: {', then '.join(report.hindsight)}": report.ordered,
        "this route": report.route,
        "oracle": report.oracle,
    }
    for name, outcome in ways.items():
        share = f"{shares[name]:.0%}" if name in shares else ""
        shown.add_row(name, f"{outcome.right:.1%}", f"{outcome.tokens:.0f}", share)
    output.people.print(shown)
    output.people.print(f"over {pluralise(report.requests, 'request')}, each routed by numbers of others", markup=False)


def _figures(report: RouteReport) -> dict[str, object]:
    named = {"route": report.route, "random": report.random, "cascade": report.cascade, "oracle": report.oracle}
    return {
        "requests": report.requests,
        "best": report.best,
        "tiers": {key: outcome._asdict() for key, outcome in report.tiers.items()},
        **{name: outcome._asdict() for name, outcome in named.items()},
        "saved": report.saved,
        "saved_by_cascade": report.saved_by_cascade,
    }
