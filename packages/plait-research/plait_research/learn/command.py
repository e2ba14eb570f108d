"""`plait learn`: strategies counted in journals; numbers found by replaying them; prompt texts changed by reflection;
each change tested; versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table as Shown

from plait.apps.common.dataset import DatasetQuestion, environment_of, read_questions
from plait.apps.common.fields import read_fields
from plait.apps.common.interrupt import run_stoppable
from plait.apps.common.journals import Place, place_of
from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import Output, opened
from plait.apps.common.session import choose_model
from plait.core.errors import UsageError
from plait.core.messages import did_you_mean, pluralise
from plait.core.request import Request
from plait.runtime.journal.directory import entries
from plait.runtime.plugins.loader import Plugins

from ..rollouts.export import ExclusionCounts, export
from .effort import count, drawing
from .improve import Round
from .learnable import Declared, Versions, versions_of
from .pareto import Learner, TextSearch


def strategies(
    place: Place = None,
    planner: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:k=v,…]", help="Strategy to count; repeatable, all by default.")
    ] = None,
    price: Annotated[float, typer.Option(min=0.0, help="Price of a generated token; a right answer is worth 1.")] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="OUT.json", help="Output file with the counts per task, for route-record:path=OUT.json."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count how well strategies did, by task, for `route-record`."""
    left = ExclusionCounts()
    runs = list(entries(place_of(place), []))
    table = count(export(runs, Plugins(), left, unanswered=True), price, planner or ())
    tasks = sorted({task for task, _ in table.rows})
    made = {task: drawing(table, task).model_dump(mode="json") for task in tasks}
    if out is not None:
        out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    with opened(as_json) as output:
        if as_json:
            output.result({"runs": len(runs), "unjudged": table.unjudged, "left": left.why, "routes": made})
            return
        shown = Shown(box=None, pad_edge=False)
        for name in ("task", "strategy", "runs", "right", "tokens a run", "wins"):
            shown.add_column(name, justify="left" if name in ("task", "strategy") else "right")
        for (task, key), row in sorted(table.rows.items()):
            tokens = f"{row.tokens / row.runs:.0f}" if row.runs else "-"
            shown.add_row(task, key, str(row.runs), str(row.right), tokens, f"{row.wins:.1f}")
        output.people.print(shown)
        if table.unjudged:
            note = f"{pluralise(table.unjudged, 'run')} left out: their task cannot tell what is right"
            output.people.print(note, markup=False)


class CombeeEffort(BaseModel):
    """The options of `--by combee`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rounds: int = Field(1, ge=1, description="Rounds of reflection.")


class GepaEffort(BaseModel):
    """The options of `--by gepa`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    runs: int = Field(300, ge=1, description="Approximate number of problems that the search runs.")


_METHODS: dict[str, type[CombeeEffort | GepaEffort]] = {"combee": CombeeEffort, "gepa": GepaEffort}


def _known_method(name: str) -> str:
    if name not in _METHODS:
        raise UsageError(f"there is no method {name!r}{did_you_mean(name, _METHODS)}: write --by combee or gepa")
    return name


@common_options
def prompts(
    declared: Declared,
    problems: Annotated[
        Path,
        typer.Option(
            metavar="FILE.jsonl|csv", help='Lines {"text": …, "want": …}: some to learn from, the last to test on.'
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="NAME[:k=v]",
            help="combee: one proposal from many failures per round (combee:rounds=1). gepa: a search among texts, "
            "thirds of the problems to reflect on, to compare and to test on; about 300 runs (gepa:runs=300); needs "
            "the extra `prompts`.",
        ),
    ] = "combee",
    level: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Probability of accepting a change that does not help.")
    ] = 0.1,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent problems.")] = 32,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Learn declared values from runs that fail. A change must pass a paired test on other problems.

    A value called `text` is put before each request; any other is an option of the planner.
    """
    effort = read_fields("--by", by.partition(":")[2], _METHODS[_known_method(by.partition(":")[0])])
    search = isinstance(effort, GepaEffort)
    versions = versions_of(declared)
    config = choose_model(common.load(), request.task.name)
    if config.journal is None:
        config = config.model_copy(update={"journal": "off"})
    questions = read_questions(problems, request.task, place=environment_of(request.task.name, None))
    least = 6 if search else 4
    if len(questions) < least:
        shares = "a third each to reflect on, to compare and to test on" if search else "half to test on"
        raise UsageError(f"{problems} has {len(questions)} problems, and {least} are least: {shares}")
    learner = Learner(config, request, concurrency)
    with opened(as_json) as output:
        if isinstance(effort, GepaEffort):
            runs = effort.runs
            searches: list[TextSearch] = []
            run_stoppable(lambda stopper: learner.search(versions, questions, runs, level, searches, output, stopper))
            _tell_search(versions, searches, output)
            return
        made: list[Round[DatasetQuestion]] = []
        rounds = effort.rounds
        run_stoppable(lambda stopper: learner.improve(versions, questions, rounds, level, made, output, stopper))
        rounds_made = [
            {"failed": trial.failed, "proposed": trial.proposed, "faults": trial.faults,
             "outcome": None if trial.outcome is None else str(trial.outcome),
             "version": None if trial.version is None else trial.version.number}
            for trial in made
        ]  # fmt: skip
        lines: list[str] = []
        for number, trial in enumerate(made, 1):
            what = str(trial.outcome) if trial.outcome is not None else "; ".join(trial.faults) or "nothing failed"
            lines.append(f"round {number}: {pluralise(trial.failed, 'failure')}; {what}")
        if versions.current.parent is not None:
            lines.append(versions.diff(versions.current.parent, versions.current.number))
        current = versions.current
        output.report({"version": current.number, "values": current.values, "rounds": rounds_made}, *lines)


def _tell_search(versions: Versions, searches: list[TextSearch], output: Output) -> None:
    """Say what came of a search; nothing if it was given up."""
    for made in searches:
        outcome = "no candidate was better" if made.outcome is None else str(made.outcome)
        record = {
            "version": versions.current.number, "values": versions.current.values, "runs": made.runs,
            "candidates": made.candidates, "merged": made.merged, "scores": made.scores, "proposed": made.proposed,
            "outcome": outcome,
        }  # fmt: skip
        counts = f"{pluralise(made.runs, 'run')}, {pluralise(made.candidates, 'candidate')} ({made.merged} merged)"
        lines = [f"{counts}, score {made.scores[0]:.3g} -> {made.scores[1]:.3g}; {outcome}"]
        if made.version is not None and made.version.parent is not None:
            lines.append(versions.diff(made.version.parent, made.version.number))
        output.report(record, *lines)


def versions(
    declared: Declared,
    old: Annotated[int | None, typer.Argument(help="Version to compare with another.")] = None,
    new: Annotated[int | None, typer.Argument(help="The other version; the current one by default.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Return to the version before the current one.")] = False,
    as_json: Json = False,
) -> None:
    """Show the versions of learned values and their reasons, or what changed between two of them."""
    kept = versions_of(declared)
    if undo:
        kept.undo()
    current = kept.current
    with opened(as_json) as output:
        if as_json and undo:
            output.result({"current": current.number, "values": current.values})
        elif as_json:
            rows = [version.model_dump(mode="json") for version in kept.all]
            output.result({"current": current.number, "versions": rows})
        elif undo:
            output.people.print(f"version {current.number} is in force", markup=False)
        elif old is not None:
            output.people.print(kept.diff(old, current.number if new is None else new), markup=False, soft_wrap=True)
        else:
            for version in kept.all:
                mark = "*" if version.number == current.number else " "
                parent = "" if version.parent is None else f" from {version.parent}"
                output.people.print(f"{mark} {version.number}{parent}  {version.why or 'as declared'}", markup=False)
