"""`plait learn`: strategies counted in journals; numbers found by replaying them; prompt texts changed by reflection;
each change tested; versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Shown

from ....core.errors import UsageError
from ....core.messages import counted
from ....core.plan import Plan
from ....core.request import Request
from ....runtime.client.config import Config
from ....runtime.journal.directory import entries
from ....runtime.plugins.loader import Plugins
from ....runtime.runlog import RunLog
from ...common.concurrently import for_each
from ...common.dataset import DatasetQuestion, read_questions
from ...common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ...common.journals import Place, place_of
from ...common.options import Common, Json, common_options
from ...common.output import Output, opened
from ...common.session import Session, opened_session
from ..rollouts.export import ExclusionCounts, export
from .improve import ProblemTrial, Round, improve
from .learnable import Declared, Values, Versions, applied, versions_of
from .reflect import lesson
from .strategies import count, drawing

__all__ = ["diff", "prompts", "show", "strategies", "undo"]


def strategies(
    place: Place = None,
    arm: Annotated[
        list[str] | None, typer.Option(metavar="PLANNER", help="Only these, such as sample:n=8; repeatable.")
    ] = None,
    price: Annotated[float, typer.Option(min=0.0, help="What a generated token takes off a right answer's 1.")] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json", help="Write a `route` of each task, for route:path=OUT.json, with the counts."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count how well strategies did, by task, for `route:by=record`."""
    left = ExclusionCounts()
    runs = list(entries(place_of(place), []))
    table = count(export(runs, Plugins(), left, unanswered=True), price, arm or ())
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
            note = f"{counted(table.unjudged, 'run')} left out: their task cannot tell what is right"
            output.people.print(note, markup=False)


@common_options
def prompts(
    declared: Declared,
    problems: Annotated[
        Path,
        typer.Option(
            metavar="FILE.jsonl|csv", help='Lines {"text": …, "want": …}: half to learn from, half to test on.'
        ),
    ],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of reflection.")] = 1,
    level: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Chance of taking a change that does not help.")
    ] = 0.1,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at the same time.")] = 32,
    as_json: Json = False,
    *,
    request: Request,
    common: Common,
) -> None:
    """Learn declared values from runs that fail. A change is taken only if a paired test on other problems says so.

    A value called `text` is put before each request; any other is an option of the planner.
    """
    versions = versions_of(declared)
    config = common.load()
    if config.journal is None:
        config = config.model_copy(update={"journal": "off"})
    questions = read_questions(problems, request.task)
    if len(questions) < 4:
        raise UsageError(
            f"{problems} has {len(questions)} problems: half are to learn from and half to test on, so 4 are least"
        )
    with opened(as_json) as output:
        made: list[Round[DatasetQuestion]] = []
        learner = _Learner(config, request, concurrency)
        run_stoppable(lambda stopper: learner.run(versions, questions, rounds, level, made, output, stopper))
        rounds_made = [
            {"failed": trial.failed, "proposed": trial.proposed, "faults": trial.faults,
             "outcome": None if trial.outcome is None else str(trial.outcome),
             "version": None if trial.version is None else trial.version.number}
            for trial in made
        ]  # fmt: skip
        if as_json:
            output.result(
                {"version": versions.current.number, "values": versions.current.values, "rounds": rounds_made}
            )
            return
        for number, trial in enumerate(made, 1):
            what = str(trial.outcome) if trial.outcome is not None else "; ".join(trial.faults) or "nothing failed"
            output.people.print(f"round {number}: {counted(trial.failed, 'failure')}; {what}", markup=False)
        if versions.current.parent is not None:
            output.people.print(versions.diff(versions.current.parent, versions.current.number), markup=False)


class _Learner:
    """Runs problems and reflections on one session."""

    def __init__(self, config: Config, request: Request, concurrency: int) -> None:
        self._config, self._concurrency = config, concurrency
        self._request = (
            request if "planner" in request.model_fields_set else request.updated({"planner": config.planner})
        )
        self._log = RunLog(keep="attempts")

    async def run(
        self,
        versions: Versions,
        questions: Sequence[DatasetQuestion],
        rounds: int,
        level: float,
        made: list[Round[DatasetQuestion]],
        output: Output,
        stopper: Stopper,
    ) -> None:
        """Make the rounds; `made` gets each."""
        half = len(questions) // 2
        try:
            async with opened_session(self._config, output, stopper, watch=self._log.take) as session:

                async def solve(values: Values, part: Sequence[DatasetQuestion]) -> list[ProblemTrial]:
                    return await self._solve(session, values, part, stopper)

                async def ask(plan: Plan) -> str:
                    answer = await session.orchestrator.run(plan=plan)
                    return answer.value if isinstance(answer.value, str) else ""

                for number in range(rounds):
                    train, test = questions[:half], questions[half:]
                    made.append(
                        await improve(versions, train, test, solve, ask, level=level, seed=self._config.seed + number)
                    )
        except CommandInterrupted:
            return

    async def _solve(
        self, session: Session, values: Values, part: Sequence[DatasetQuestion], stopper: Stopper
    ) -> list[ProblemTrial]:
        before = str(values.get("text", ""))
        planner, policies = applied(self._request.planner, self._request.policies, values)
        given = self._request.updated({"planner": planner, **({"policies": policies} if values.get("policy") else {})})
        out: list[ProblemTrial] = [ProblemTrial(0.0)] * len(part)

        async def one(item: tuple[int, DatasetQuestion]) -> None:
            place, question = item
            text = f"{before}\n\n{question.text}" if before else question.text
            answer = await session.orchestrator.run(given.updated({"text": text}))
            record = self._log.pop(answer.run)
            right = question.is_right(answer.answer)
            wanted = "" if question.want is None else f"; wanted {json.dumps(question.want)}"
            feedback = f"the answer {json.dumps(answer.answer)} is wrong{wanted}"
            if answer.failure is not None:
                feedback = answer.failure.message
            out[place] = ProblemTrial(float(right), "" if right or record is None else lesson(record, feedback))

        await for_each(list(enumerate(part)), one, min(self._concurrency, max(1, len(part))), stopper)
        if stopper.requested:
            raise CommandInterrupted
        return out


def show(declared: Declared, as_json: Json = False) -> None:
    """Show the versions of learned values, and why each was taken."""
    versions = versions_of(declared)
    with opened(as_json) as output:
        if as_json:
            rows = [version.model_dump(mode="json") for version in versions.all]
            output.result({"current": versions.current.number, "versions": rows})
            return
        for version in versions.all:
            mark = "*" if version.number == versions.current.number else " "
            parent = "" if version.parent is None else f" from {version.parent}"
            output.people.print(f"{mark} {version.number}{parent}  {version.why or 'as declared'}", markup=False)


def diff(
    declared: Declared,
    old: Annotated[int, typer.Argument(help="A version.")],
    new: Annotated[int, typer.Argument(help="Another.")],
) -> None:
    """Show what changed between two versions."""
    typer.echo(versions_of(declared).diff(old, new))


def undo(declared: Declared, as_json: Json = False) -> None:
    """Go back to the version before the current one."""
    version = versions_of(declared).undo()
    with opened(as_json) as output:
        if as_json:
            output.result({"current": version.number, "values": version.values})
        else:
            output.people.print(f"version {version.number} is in force", markup=False)
