"""`plait learn`: numbers by which planners spend effort or choose strategies, counted in journals; prompt texts changed
by reflection; each change tested; versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from plait.apps.common.dataset import DatasetQuestion, environment_of, read_questions
from plait.apps.common.fields import read_fields
from plait.apps.common.interrupt import CommandInterrupted, Stopper, run_stoppable
from plait.apps.common.journals import Place, place_of
from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import Output, opened
from plait.apps.common.progress import for_each
from plait.apps.common.session import choose_model, opened_session
from plait.core.errors import UsageError
from plait.core.messages import did_you_mean, pluralise
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.core.task import Task
from plait.runtime.client.config import Config
from plait.runtime.journal.directory import entries
from plait.runtime.plugins.loader import Plugins

from ..learning_planner import LearningPlanner, RunOutcome, learn
from ..rollouts.export import ExclusionCounts, export
from .improve import Round
from .learnable import Declared, Versions, versions_of
from .pareto import Learner, TextSearch

MEASURED: dict[str, dict[str, JsonValue]] = {"scale": {"threshold": 0.0}, "takeover": {"threshold": 0.0}}
"""For each planner, the specification that runs it on problems, so that every decision by its numbers is tried."""

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="The task that the numbers are for, such as countdown.")]
Problems = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl|csv", help='Lines {"text": …, "want": …} to run. By default runs in journals are counted.'
    ),
]
Out = Annotated[Path, typer.Option(metavar="OUT.json", help="File for PLANNER:path=OUT.json; new counts are added.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Concurrent problems.")]


@common_options
def effort(
    task: TaskName,
    out: Out,
    problems: Problems = None,
    place: Place = None,
    concurrency: Concurrency = 8,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Calibrate a planner that spends effort by numbers: `scale` by default, `takeover`, `ssr`, `mars`,
    `route-record`.

    With `--problems` each is run with `--planner` so that it makes records: `scale` does every step the easy way, the
    draft of `takeover` writes all segments, and each is scored. Without, the runs of that planner in journals are
    counted, for `route-record` those of its candidates too.
    """
    given = request.planner if "planner" in request.model_fields_set else Plugin(name="scale")
    plugins = Plugins()
    if not isinstance(plugins.planner(given), LearningPlanner):
        raise UsageError(f"the planner {given.name!r} has no numbers that could be learned (`path`)")
    asked = request.updated({"task": Plugin.of(task)})
    left = ExclusionCounts()
    with opened(as_json) as output:
        if problems is None:
            runs, learned = _from_journals(given, asked.task, place, out, plugins, left)
        else:
            options = {**given.options, **MEASURED.get(given.name, {}), "path": str(out), "learn": True}
            asked = asked.updated({"planner": Plugin(name=given.name, options=options)})
            questions = read_questions(problems, asked.task)
            runner = _Runner(choose_model(common.load(), asked.task.name), asked, concurrency)
            run_stoppable(lambda stopper: runner.run(questions, output, stopper))
            runs, learned = runner.runs, runner.learned
        lines = [f"{pluralise(number, 'run')} left out: {why}" for why, number in sorted(left.why.items())]
        lines.append(f"{out}: {pluralise(learned, 'run')} of {runs} counted for {task}")
        lines += [f"use it with --planner {given.name}:path={out}"] * bool(learned)
        output.report({"runs": runs, "learned": learned, "left": left.why, "out": str(out)}, *lines)


def _from_journals(
    given: Plugin, task: Plugin, place: str | None, out: Path, plugins: Plugins, left: ExclusionCounts
) -> tuple[int, int]:
    """Count the runs of a planner in journals. Return the number of runs, and of runs that gave feedback."""
    runs = learned = 0
    learner = plugins.planner(given)
    assert isinstance(learner, LearningPlanner)
    candidates = [tier.planner for tier in getattr(learner, "candidates", ())]
    for run in export(list(entries(place_of(place), [])), plugins, left, unanswered=True):
        request, finish = run.run.request, run.run.finish
        own = request.planner.name in (given.name, *learner.counts_runs_of)
        if not (own or request.planner in candidates) or request.task.name != task.name:
            continue
        runs += 1
        # A run without an answer is wrong, unless its task can judge no answer at all.
        judged = run.right is not None and type(run.task).verify is not Task.verify
        outcome = RunOutcome(
            planner=request.planner, text=request.text, seed=request.seed, tokens=run.tokens,
            right=float(run.right or 0) if judged else None,
            key=None if run.answer is None else run.task.key(run.answer),
            data=learner.measure(run.run.steps, None if not finish or not finish.result else finish.result.data),
        )  # fmt: skip
        learner_request = request if request.planner.name == given.name else request.updated({"planner": given})
        learned += learn(learner_request, outcome, plugins.planner, out)
    return runs, learned


class _Runner:
    """Runs problems with a planner that learns."""

    def __init__(self, config: Config, request: Request, concurrency: int) -> None:
        self._config = config if config.journal is not None else config.model_copy(update={"journal": "off"})
        self._request, self._concurrency = request, concurrency
        self.runs = self.learned = 0

    async def run(self, questions: list[DatasetQuestion], output: Output, stopper: Stopper) -> None:
        """Run all problems."""
        try:
            async with opened_session(self._config, output, stopper) as session:
                lessons = session.orchestrator.lessons

                async def one(question: DatasetQuestion) -> None:
                    answer = await session.orchestrator.run(self._request.updated({"text": question.text}))
                    self.runs += 1
                    if answer.verified is None and answer.answer is not None:
                        await lessons.feedback(answer.run, float(question.is_right(answer.answer)))
                    learned = await lessons.counted(answer.run)
                    self.learned += learned

                await for_each(questions, one, min(self._concurrency, max(1, len(questions))), stopper)
        except CommandInterrupted:
            return


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
    """Print the result of a search; nothing if it was cancelled."""
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
