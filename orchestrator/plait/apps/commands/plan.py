"""`plait plan`: the first plan of a planner, without running it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core import graph
from ...core.errors import UsageError
from ...core.interfaces import PlanningContext
from ...core.messages import counted
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.request import Request
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ..common.options import Common, Dialect, Json, common_options
from ..common.output import opened

__all__ = ["briefed", "first_plan", "plan", "planned", "runs_without_model"]


@common_options
def plan(
    text: Annotated[str, typer.Argument(help="What is asked.")] = "",
    dialect: Dialect = None,
    file: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Check and show this plan.")] = None,
    plan_text: Annotated[
        Path | None,
        typer.Option("--plan-text", metavar="FILE", help="Read this plan as a model wrote it (- for standard input)."),
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print it in Graphviz's language.")] = False,
    price: Annotated[
        bool, typer.Option("--price", help="Say the tokens and cost, at most and likely, before anything runs.")
    ] = False,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Show the first plan for a request: its steps by wave, its width (steps of the widest wave), its critical path."""
    if mermaid + dot + as_json > 1:
        raise UsageError("--mermaid, --dot and --json exclude each other: choose one")
    if plan_text is not None:
        if file is not None:
            raise UsageError("--plan and --plan-text exclude each other: one is JSON, the other a model's text")
        named = request.planner if "planner" in request.model_fields_set else Plugin(name="llmcompiler")
        _show_written(common.load(), named, plan_text, mermaid, dot, as_json)
        return
    config = common.load()
    request = planned(request, file, dialect).updated({"text": text})
    made = first_plan(config, request)
    taken = None
    if price:
        from ...runtime.plugins.entry_points import find_hook
        from .price import estimate

        taken = estimate(made, briefed(config, request), config, find_hook("forecast"))
    chain, layers = graph.critical_path(made), graph.waves(made)
    wide = max(map(len, layers), default=0)
    with opened(as_json) as output:
        if as_json:
            output.result(
                {
                    "plan": made.model_dump(mode="json", exclude_none=True),
                    "steps": len(made.steps),
                    "waves": layers,
                    "width": wide,
                    "critical_path": {"steps": list(chain.names), "tokens_at_most": chain.length},
                    **({} if taken is None else {"price": taken.plain()}),
                }
            )
            return
        if mermaid or dot:
            output.stream.write(graph.mermaid(made) if mermaid else graph.dot(made))
            return
        output.stream.write(graph.text(made))
        output.stream.write(
            f"{counted(len(layers), 'wave')}, width {wide}, critical path {' > '.join(chain.names)} "
            f"(at most {chain.length:g} tokens)\n"
        )
        for line in taken.lines() if taken is not None else ():
            output.stream.write(f"{line}\n")


def _show_written(config: Config, planner: Plugin, path: Path, mermaid: bool, dot: bool, as_json: bool) -> None:
    """Show a plan that a model has written, as its planner reads it. Without `--tools`, it may call unknown tools."""
    made = _read_written(config, planner, path)
    with opened(as_json) as output:
        if as_json:
            output.result(made)
            return
        for complaint in (*made["repairs"], *made["errors"]):
            output.progress.print(complaint, style="yellow", markup=False, highlight=False)
        if made["plan"] is None:
            output.stream.write("no task\n")
            return
        plan = Plan.model_validate(made["plan"])
        output.stream.write(graph.mermaid(plan) if mermaid else graph.dot(plan) if dot else graph.text(plan))


def _read_written(config: Config, planner: Plugin, path: Path) -> dict[str, Any]:
    """Parse a written plan with its planner. Raises `UsageError` for an unreadable file and for a planner that reads
    no plans."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise UsageError(f"--plan-text {path} cannot be read ({what}): give a file with a written plan") from None
    client = AsyncOrchestrator(config=config, workers=[])
    made = client.plugins.planner(planner)
    parse = getattr(made, "parse", None)
    if parse is None:
        raise UsageError(f"the planner {planner.name!r} reads no written plans: use --planner llmcompiler")
    return parse(text, client.brief(planned=True).tools)


def planned(request: Request, plan: Path | None, dialect: str | None = None) -> Request:
    """Return a request with the planner that a command was given by `--planner` (and `--dialect`, which is an option of
    it and means the planner `threads` by itself) or `--plan`. Raises `UsageError` for both at once."""
    named = "planner" in request.model_fields_set
    if plan is not None:
        if dialect is not None:
            raise UsageError("--dialect and --plan exclude each other: a plan from a file spawns no threads")
        if named:
            raise UsageError("--planner and --plan exclude each other: a plan from a file needs no planner")
        return request.updated({"planner": Plugin(name="fixed", options={"path": str(plan)})})
    if dialect is None:
        return request
    chosen = request.planner if named else Plugin(name="threads")
    return request.updated({"planner": Plugin(name=chosen.name, options={**chosen.options, "dialect": dialect})})


def first_plan(config: Config, request: Request) -> Plan:
    """Return the first plan for a request. Raises what submitting it would raise."""
    return AsyncOrchestrator(config=config, workers=[]).plan(request)


def briefed(config: Config, request: Request) -> PlanningContext:
    """Return the planning context of a request, without starting anything. Raises `UsageError` for an invalid
    request."""
    client = AsyncOrchestrator(config=config, workers=[])
    brief = client.brief(request)
    merge = getattr(client.plugins.planner(brief.request.planner), "merge", None)
    if isinstance(merge, Plugin):
        client.plugins.merge(merge)
    return brief


def runs_without_model(config: Config, request: Request) -> bool:
    """Return whether a request can be run without a model, being a plan from a file that only calls tools.

    Raises the errors of submitting the request that can be found without workers: an engine takes seconds to start.
    """
    planner = briefed(config, request).request.planner.name
    if ":" in planner:  # a third party's, which might mind being asked twice
        return False
    made = first_plan(config, request)
    return planner == "fixed" and all(step.op.kind != "think" for step in made.steps)
