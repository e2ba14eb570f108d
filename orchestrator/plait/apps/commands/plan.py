"""`plait plan`: the first plan of a planner, without running it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ...core import graph
from ...core.errors import UsageError
from ...core.interfaces import PlanningContext
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.request import Request
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ..common.options import Common, Json, common_options
from ..common.output import opened

_FORMS = {"text": graph.text, "mermaid": graph.mermaid, "dot": graph.dot}


@common_options
def plan(
    text: Annotated[str, typer.Argument(help="Text of the request.")] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Plan to check and show: JSON, or text as a model wrote it; - reads the text from standard input.",
        ),
    ] = None,
    form: Annotated[
        Literal["text", "mermaid", "dot"],
        typer.Option("--format", help="A table of steps, a Mermaid flowchart or Graphviz's language."),
    ] = "text",
    price: Annotated[
        bool, typer.Option("--price", help="Tokens and cost, at most and likely, before anything runs.")
    ] = False,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Show the first plan for a request: its steps by wave, its width (steps of the widest wave), its critical path."""
    if form != "text" and as_json:
        raise UsageError(f"--format {form} and --json exclude each other: choose one")
    if file is not None and _is_written(file):
        named = request.planner if "planner" in request.model_fields_set else Plugin(name="llmcompiler")
        _show_written(common.load(), named, file, form, as_json)
        return
    config = common.load()
    request = planned(request, file).updated({"text": text})
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
        if form != "text":
            output.stream.write(_FORMS[form](made))
            return
        output.stream.write(graph.text(made))
        output.stream.write(f"{graph.summary(made)}\n")
        for line in taken.lines() if taken is not None else ():
            output.stream.write(f"{line}\n")


def _is_written(path: Path) -> bool:
    """Return whether a plan is a text that a model wrote, and not JSON."""
    if str(path) == "-" or path.suffix == ".json":
        return str(path) == "-"
    try:
        with path.expanduser().open(encoding="utf-8", errors="replace") as file:
            return not file.read(4_096).lstrip().startswith("{")
    except OSError:  # refused by what reads it then
        return True


def _show_written(config: Config, planner: Plugin, path: Path, form: str, as_json: bool) -> None:
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
        output.stream.write(_FORMS[form](Plan.model_validate(made["plan"])))


def _read_written(config: Config, planner: Plugin, path: Path) -> dict[str, Any]:
    """Parse a written plan with its planner. Raises `UsageError` for an unreadable file and for a planner that reads
    no plans."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise UsageError(f"--plan {path} cannot be read ({what}): give a file with a written plan") from None
    client = AsyncOrchestrator(config=config, workers=[])
    made = client.plugins.planner(planner)
    parse = getattr(made, "parse", None)
    if parse is None:
        raise UsageError(f"the planner {planner.name!r} reads no written plans: use --planner llmcompiler")
    return parse(text, client.brief(planned=True).tools)


def planned(request: Request, plan: Path | None) -> Request:
    """Return a request with the planner `fixed` for a plan from a file. Raises `UsageError` for one with a planner."""
    if plan is None:
        return request
    if "planner" in request.model_fields_set:
        raise UsageError("--planner and --plan exclude each other: a plan from a file needs no planner")
    return request.updated({"planner": Plugin(name="fixed", options={"path": str(plan)})})


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
