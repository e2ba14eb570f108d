"""Count over many problems how many are solved, and at what cost: the figures of `plait eval`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from ...core.errors import ConfigError
from ...core.request import Request
from ...core.result import Usage
from ...core.task import Environment
from ...runtime.client.answer import Answer
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.client.parallelism import parallelism
from ..common.dataset import DatasetQuestion
from ..common.interrupt import CommandInterrupted, Stopper, run_stoppable
from ..common.intervals import wilson
from ..common.output import Output
from ..common.progress import counting, for_each
from ..common.session import opened_session
from .compare import compared, plot, show


class Problem(Protocol):
    """A problem with a check of its answers."""

    def is_right(self, answer: Any, /) -> bool:
        """Return whether an answer solves it."""
        ...

    def record(self) -> dict[str, Any]:
        """Return its fields of a line in a file of results."""
        ...


@dataclass(slots=True)
class EvalCounts:
    """What is counted over problems; everything is about those that were run to an end."""

    n: int = 0
    solved: int = 0
    claimed: int = 0
    failed: int = 0
    critical: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    """Wall-clock of all of them together."""
    spawned: int = 0
    """Problems with anything generated side by side."""
    acceleration: float = 0.0
    """Sum of their η = 1 - L_crit / L_total."""
    first_failure: str = ""
    records: dict[int, dict[str, Any]] = field(default_factory=dict[int, "dict[str, Any]"])
    """What is written of each problem, by its place in the file."""

    def add(
        self,
        place: int,
        problem: Problem,
        answer: Answer,
        solved: bool | None = None,
        before: Sequence[Answer] = (),
    ) -> bool:
        """Count one answer and return whether it solves the problem: as graded elsewhere, or as the problem says.
        `before`: those of its earlier turns, whose cost it has too."""
        solved = problem.is_right(answer.answer) if solved is None else solved
        turns = (*before, answer)
        critical, usage = sum(turn.critical_path_tokens for turn in turns), sum((turn.usage for turn in turns), Usage())
        self.n += 1
        self.solved += solved
        self.claimed += answer.answer is not None
        self.critical += critical
        self.usage += usage
        figures = parallelism(answer.report)
        self.spawned += figures.activated
        self.acceleration += figures.acceleration
        if answer.status == "failed":
            self.failed += 1
            if answer.failure is not None and not self.first_failure:
                more = f"; more: plait why {answer.run}" if answer.run else ""
                self.first_failure = f"{answer.failure.message} ({answer.failure.kind}){more}"
        made = answer.provenance
        first = {} if made is None or self.records else {"made_of": made.model_dump(mode="json")}
        self.records[place] = {
            "row": place,
            **problem.record(),
            "answer": answer.answer,
            "solved": solved,
            "status": answer.status,
            "critical_path_tokens": critical,
            "total_tokens": usage.completion,
            "cached": usage.cached,
            "parallelism": figures.summary(),
            "seconds": round(sum(turn.seconds for turn in turns), 4),
            "cost": usage.cost,
            **({"turns": len(turns)} if before else {}),
            "provenance": None if made is None else made.digest,
            **first,
        }
        return solved

    def summary(self) -> dict[str, Any]:
        """Return the counts as they are printed."""
        low, high = wilson(self.solved, self.n)
        return {
            "n": self.n,
            "solved": self.solved,
            "claimed": self.claimed,
            "failed": self.failed,
            "solved_percent": round(_share(self.solved, self.n) * 100, 2),
            "solved_interval_percent": [round(low * 100, 2), round(high * 100, 2)],
            "critical_path_tokens_mean": round(_share(self.critical, self.n), 2),
            "total_tokens_mean": round(_share(self.usage.completion, self.n), 2),
            "cancelled_tokens_mean": round(_share(self.usage.cancelled, self.n), 2),
            "uncounted": self.usage.uncounted,
            "prompt_tokens": self.usage.prompt,
            "cached_tokens": self.usage.cached,
            "cached_share": round(_share(self.usage.cached, self.usage.prompt), 4),
            "activated_share": round(_share(self.spawned, self.n), 4),
            "acceleration_mean": round(_share(self.acceleration, self.n), 4),
            "seconds": round(self.seconds, 3),
        }

    def lines(self, planner: str | None) -> str:
        """Return the records as JSON lines, in the order of the problems; each names its planner if one is given."""
        named = {} if planner is None else {"planner": planner}
        return "".join(json.dumps({**self.records[place], **named}) + "\n" for place in sorted(self.records))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def evaluated(
    config: Config,
    problems: Sequence[DatasetQuestion],
    asked: dict[str, Request],
    concurrency: int,
    tallies: dict[str, EvalCounts],
    output: Output,
) -> tuple[bool, float]:
    """Run each request on all problems, one after another on the same workers, and count in `tallies`; return whether
    the user gave up, and the seconds that the workers took to start."""

    async def evaluate(stopper: Stopper) -> tuple[bool, float]:
        try:
            async with opened_session(config, output, stopper) as session:
                for name, request in asked.items():
                    whose, tally = f"{name}: " if len(asked) > 1 else "", tallies[name]
                    await _one(session.orchestrator, problems, request, concurrency, tally, output, stopper, whose)
                return stopper.requested, session.start_seconds
        except CommandInterrupted:
            return True, 0.0

    return run_stoppable(evaluate)


def report(
    summaries: Sequence[dict[str, Any]],
    tallies: dict[str, EvalCounts],
    output: Output,
    as_json: bool,
    plot_to: Path | None,
) -> None:
    """Print what came of one planner, or of several beside one another."""
    ran = {name: tally.records.values() for name, tally in tallies.items() if tally.records}
    rows = compared(ran) if ran and (len(tallies) > 1 or plot_to is not None) else []
    if as_json:
        several = {"planners": summaries, "compared": [asdict(row) for row in rows]}
        output.result(summaries[0] if len(summaries) == 1 else several)
    elif len(summaries) == 1 or not rows:
        for summary in summaries:
            _show(summary, output)
    else:
        show(rows, output)
    if plot_to is not None and rows:
        plot(rows, plot_to)
    for tally in tallies.values():
        if tally.failed:
            output.progress.print(f"{tally.failed} runs failed, the first with: {tally.first_failure}", markup=False)


@contextlib.contextmanager
def writable(path: Path | None) -> Iterator[TextIO | None]:
    """Open the file for records before anything is run, or raise `ConfigError`."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror or error}") from None
    with file:
        yield file


async def _one(
    orchestrator: AsyncOrchestrator,
    problems: Sequence[DatasetQuestion],
    request: Request,
    concurrency: int,
    tally: EvalCounts,
    output: Output,
    stopper: Stopper,
    whose: str,
) -> None:
    began = time.monotonic()
    count = len(problems)

    def solved() -> str:
        return f"{whose}{tally.solved} solved"

    def line() -> str:
        return f"{whose}{tally.n} of {count}: {tally.solved} solved"

    with counting(output, count, lambda: tally.n, solved, line) as advance:
        await solve_all(orchestrator, problems, request, concurrency, tally, stopper, advance)
    tally.seconds = time.monotonic() - began


async def solve_all(
    orchestrator: AsyncOrchestrator,
    problems: Sequence[DatasetQuestion],
    request: Request,
    concurrency: int,
    tally: EvalCounts,
    stopper: Stopper,
    advance: Any,
) -> None:
    """Solve problems, `concurrency` at a time, and count them; ends early when the user gives up."""

    async def solve(item: tuple[int, DatasetQuestion]) -> None:
        place, problem = item
        there = problem.environment()
        try:
            answers = await _turns(orchestrator, request.updated({"text": problem.text}), there, stopper)
            if answers[-1].status == "cancelled":
                return
            solved = None
            if there is not None:
                solved = await there.grade(answers[-1].answer, problem.want)
            tally.add(place, problem, answers[-1], solved, answers[:-1])
            advance()
        finally:
            if there is not None:
                await there.close()

    await for_each(list(enumerate(problems)), solve, min(concurrency, len(problems)), stopper)


async def _turns(
    orchestrator: AsyncOrchestrator, request: Request, there: Environment | None, stopper: Stopper
) -> list[Answer]:
    """Run a problem turn by turn until the user ends it or a run gives no text to continue. Return the answers."""
    answers: list[Answer] = []
    while True:
        handle = await orchestrator.submit(request, tools=() if there is None else there.tools())
        revoke = stopper.then(handle.cancel)
        try:
            answers.append(await handle)
        finally:
            revoke()
        ended = there is None or answers[-1].status not in ("done", "partial")
        messages = () if ended or there is None else there.goes_on(answers[-1].text)
        if not messages:
            return answers
        request = request.updated({"messages": messages, "task": "plain"})  # the task has set the first turn


def _show(summary: dict[str, Any], output: Output) -> None:
    low, high = summary["solved_interval_percent"]
    share = f"{summary['solved_percent']:.1f} %, 95 % interval {low:.1f} to {high:.1f}"
    cancelled = ", cancelled" if summary["status"] == "cancelled" else ""
    least = "about " if summary["uncounted"] else ""
    rows = (
        f"{summary['planner']} on {summary['n']} of {summary['problems']} {summary['task']} problems{cancelled}",
        f"  solved         {summary['solved']} ({share})",
        f"  claimed        {summary['claimed']}",
        f"  critical path  {summary['critical_path_tokens_mean']:.1f} tokens a problem",
        f"  total          {least}{summary['total_tokens_mean']:.1f} tokens a problem",
        f"  cached         {summary['cached_tokens']} of {summary['prompt_tokens']} prompt tokens",
        f"  side by side   in {summary['activated_share'] * 100:.1f} % of the problems, acceleration "
        f"{summary['acceleration_mean']:.2f} on average",
        f"  time           {summary['seconds']:.1f} s",
    )
    for row in rows:
        output.people.print(row, markup=False, soft_wrap=True)
