"""`plait run`, one request, its answer, and its cost; `plait plan`, the first plan for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from ...core.errors import UsageError
from ...core.interfaces import PlanningContext
from ...core.messages import pluralise
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.request import Request
from ...runtime.client.answer import Answer
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.client.parallelism import parallelism
from ...runtime.plugins.loader import Plugins
from ..common import graph
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.options import Common, Json, common_options
from ..common.output import Output, opened
from ..common.session import choose_model, opened_session, preflight
from ..common.tree import StepTree, follow

_FORMS = {"text": graph.text, "mermaid": graph.mermaid}


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
        Literal["text", "mermaid"],
        typer.Option("--format", help="A table of steps, or a Mermaid flowchart."),
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
    taken: Any = None
    if price:
        from ...runtime.plugins.entry_points import demand_hook

        taken = demand_hook("forecast", "The estimates of --price")(made, briefed(config, request), config)
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


@common_options
def run(
    text: Annotated[str, typer.Argument(help="Text of the request; `-` reads it from standard input.")] = "",
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a plan to run (planner `fixed`).")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Steps of the run (live on a terminal), and why this answer.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in a process of its own; see `plait runs`.")] = False,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Solve one request: plan it, run it, print the answer and what it took."""
    if detach:
        _detach(as_json)
        return
    config = common.load()
    question = sys.stdin.read().strip() if text == "-" else text
    request = planned(request, plan).updated({"text": question})
    alone = runs_without_model(config, request)
    config = config if alone else choose_model(config, request.task.name)
    warnings = model_warnings(config, request)
    with opened(as_json) as output:
        live = verbose and (as_json or output.progress.is_terminal)
        for warning in warnings or ():
            output.progress.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
        answer = run_stoppable(lambda stopper: _run(config, request, alone, live, output, stopper))
        if as_json:
            explained = {"explain": answer.explain().splitlines()} if verbose else {}
            output.result({**answer.summary(), **_spawning(answer, warnings), **explained})
        else:
            show(answer, question, request.task, output, verbose and not live, why=not verbose)
            if config.journal != "off":
                name_why(answer, output)
            if verbose:
                output.people.print(answer.explain(), markup=False, highlight=False, soft_wrap=True)
    code = exit_code(answer)
    if code:
        raise typer.Exit(code)


def _detach(as_json: bool) -> None:
    """Start the same command without `--detach`."""
    from ..control.command import detached

    with opened(as_json) as output:
        launch = detached([word for word in sys.argv[1:] if word != "--detach"])
        run = launch["run"]
        words = f"run {run} continues: plait runs show {run[:8]} --follow" if run else "the run has ended already"
        output.report(launch, f"{words}\noutput: {launch['output']}")


def model_warnings(config: Config, request: Request) -> tuple[str, ...] | None:
    """Return the planner's warnings about the model, or `None` if the planner works with any model."""
    planner = Plugins().planner(briefed(config, request).request.planner)
    if not hasattr(planner, "preflight"):
        return None
    return (preflight(planner, config.model) or ()) if config.worker in ("ray", "engine") else ()


def _spawning(answer: Answer, warnings: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the degree of parallelism of a run, for a planner that leaves it to the model."""
    if warnings is None:
        return {}
    return {"parallelism": parallelism(answer.report).summary(), "warnings": list(warnings)}


async def _run(config: Config, request: Request, alone: bool, live: bool, output: Output, stopper: Stopper) -> Answer:
    try:
        async with opened_session(config, output, stopper, [] if alone else None) as session:
            handle = await session.orchestrator.submit(request, watch=live)
            stopper.then(handle.cancel)
            if live:
                await follow(handle, output.progress, request.text)
            return await handle
    except CommandInterrupted:
        return Answer(run="", status="cancelled", why="given up before anything ran")


def status_line(answer: Answer) -> Text:
    """Return how a run ended, whether its answer was verified, and what it took."""
    style = {"done": "green", "failed": "red", "no answer": "red"}.get(answer.outcome, "yellow")
    verdict = {True: ", verified", False: ", wrong", None: ""}[answer.verified if answer.answer is not None else None]
    return Text.assemble((answer.outcome + verdict, style), (f" · {cost(answer)}", "dim"))


def exit_code(answer: Answer) -> int:
    """Return the exit code of a run's end."""
    if answer.status == "cancelled":
        return 130
    return 0 if answer.status in ("done", "partial") and answer.answer is not None else 1


def show(answer: Answer, text: str, task: str | Plugin, output: Output, steps: bool, why: bool = True) -> None:
    """Print an answer for people: what it is, how it ended, why, what it took, and with `steps` all it was made of."""
    console = output.people
    if steps:
        console.print(StepTree.of_report(answer.report, title=text).renderable(console.width))
    words = worded(answer, text, task)
    if words:
        console.print(Text(words), soft_wrap=True)
    line = status_line(answer)
    if why and answer.why:
        line.append(f"\n{answer.why}", style="dim")
    console.print(line, soft_wrap=True)
    if answer.failure is not None and answer.status != "cancelled":
        word, style = ("error", "red") if answer.value is None else (answer.status, "yellow")
        output.progress.print(
            Text(f"{word}: {answer.failure.message} ({answer.failure.kind})", style=style), soft_wrap=True
        )
        for frames in dict.fromkeys(step.failure.frames for step in answer.trace if step.failure is not None):
            if frames:
                output.progress.print(Text("\n".join(f"  {line}" for line in frames.splitlines()), style="dim"),
                                      soft_wrap=True)  # fmt: skip
    # What was done before it failed may be all that the caller wanted.
    if answer.partial and answer.value is None:
        console.print(Text(f"{pluralise(len(answer.partial), 'step')} done:", style="dim"))
        for step, value in list(answer.partial.items())[:20]:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            console.print(Text(f"  {step.partition(':')[2]}: {shown}"), no_wrap=True, overflow="ellipsis")
    if steps and (spent := where_time_went(answer)):
        console.print(Text(spent, style="dim"), soft_wrap=True)


def name_why(answer: Answer, output: Output) -> None:
    """Return the command that explains a failure, for a run in a journal."""
    if answer.run and answer.status != "cancelled" and answer.failure is not None:
        output.progress.print(Text(f"more: plait why {answer.run}", style="dim"), soft_wrap=True)


def worded(answer: Answer, text: str, task: str | Plugin) -> str:
    """Return the answer as its task formats it, or the unchanged output if the task finds no answer in it."""
    if answer.answer is None:
        return "" if answer.value is None else f"no answer in: {answer.text}"
    explain = getattr(_bound(task, text), "explain", None)
    if explain is not None:
        return str(explain(answer.answer))
    return answer.answer if isinstance(answer.answer, str) else json.dumps(answer.answer, ensure_ascii=False)


def _bound(task: str | Plugin, text: str) -> Any:
    return Plugins().task(Plugin.of(task), text)


def cost(answer: Answer) -> str:
    """Return tokens and time in one line."""
    usage = answer.usage
    least = "about " if usage.uncounted else ""
    total = f"{least}{answer.total_tokens} tokens ({answer.critical_path_tokens} critical path)"
    parts = [f"{answer.seconds:.2f} s", total]
    if answer.finish == "length" and answer.status == "done":  # else the failure names the limit
        parts.append("cut by max_tokens")
    if usage.cached:
        parts.append(f"{usage.cached} of {usage.prompt} prompt tokens cached")
    if usage.reused:
        parts.append(f"{usage.reused} tokens from the result cache")
    if usage.cancelled:
        parts.append(f"{usage.cancelled} tokens cancelled")
    if usage.cost:
        parts.append(f"cost {usage.cost:.6g}")
    if usage.uncounted:
        parts.append(f"at most {usage.uncounted} tokens uncounted")
    return " · ".join(parts)


def where_time_went(answer: Answer) -> str:
    """Return the wall-clock by cause, in one line; empty if nothing took any time worth saying."""
    spent = answer.report.time_by()
    causes = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spent.items() if seconds >= 0.005)
    return causes and f"time: {causes}"
